// Methods of strings, lists and dicts that a sandboxed template may call: those that change
// nothing.
#include <fmt/format.h>

#include <algorithm>

#include "model/chat/evaluator.h"
#include "model/chat/limits.h"
#include "model/chat/text.h"
#include "model/tokenizer/unicode.h"

namespace kvant::chat {
namespace {

// The string argument at `index`; fails where it is another kind.
std::string_view text_at(Evaluator& e, const Arguments& a, size_t index, std::string_view name) {
  const Value* value = a.find(index, name);
  if (value != nullptr && value->is_string()) return value->string();
  e.fail(fmt::format("a string method wants a string as '{}', found '{}'", name,
                     value == nullptr ? "nothing" : type_name(*value)));
  return {};
}
int64_t int_at(Evaluator& e, const Arguments& a, size_t index, std::string_view name,
               int64_t fallback) {
  const Value* value = a.find(index, name);
  if (value == nullptr || value->is_none()) return fallback;
  if (value->is_integral()) return value->integer();
  e.fail(
      fmt::format("a string method wants an integer as '{}', found '{}'", name, type_name(*value)));
  return fallback;
}
Value list_of(Evaluator& e, std::vector<std::string> parts) {
  if (!e.charge(parts.size() * sizeof(Value))) return Value();
  std::vector<Value> items;
  for (std::string& part : parts) items.emplace_back(std::move(part));
  return Value::list(std::move(items));
}

// ---- Strings
template <std::string (*kMap)(std::string_view)>
Value mapped(Evaluator&, const Value& self, Arguments&) {
  return Value(kMap(self.string()));
}
template <Side kSide>
Value strip_method(Evaluator& e, const Value& self, Arguments& a) {
  const Value* chars = a.find(0, "chars");
  if (chars == nullptr || chars->is_none()) return Value(strip(self.string(), kSide));
  const std::string_view set = text_at(e, a, 0, "chars");
  return e.failed() ? Value() : Value(strip_chars(self.string(), set, kSide));
}
enum class From : uint8_t { kLeft, kRight };
template <From kFrom>
Value split_method(Evaluator& e, const Value& self, Arguments& a) {
  const int64_t limit = int_at(e, a, 1, "maxsplit", -1);
  const Value* separator = a.find(0, "sep");
  if (separator == nullptr || separator->is_none()) {
    if (kFrom == From::kRight && limit >= 0)
      return e.fail("rsplit at white space with a limit is not supported");
    return e.failed() ? Value() : list_of(e, split_spaces(self.string(), limit));
  }
  const std::string_view by = text_at(e, a, 0, "sep");
  if (e.failed()) return Value();
  if (by.empty()) return e.fail("empty separator");
  return list_of(e, kFrom == From::kLeft ? split(self.string(), by, limit)
                                         : split_right(self.string(), by, limit));
}
Value splitlines(Evaluator& e, const Value& self, Arguments& a) {
  const Value* keep = a.find(0, "keepends");
  return list_of(e, split_lines(self.string(), keep != nullptr && keep->truthy()));
}
// A prefix or suffix may be a tuple of them.
template <bool (*kMatches)(std::string_view, std::string_view)>
Value matches_any(Evaluator& e, const Value& self, Arguments& a) {
  if (!a.positional.empty() && a.positional[0].is_list() && a.positional[0].list().is_tuple) {
    if (!e.charge(a.positional[0].weight())) return Value();
    for (const Value& part : a.positional[0].list().items) {
      if (part.is_string() && kMatches(self.string(), part.string())) return Value(true);
    }
    return Value(false);
  }
  const std::string_view part = text_at(e, a, 0, "prefix");
  return Value(!e.failed() && kMatches(self.string(), part));
}
bool starts(std::string_view text, std::string_view part) { return text.starts_with(part); }
bool ends(std::string_view text, std::string_view part) { return text.ends_with(part); }

Value replace_method(Evaluator& e, const Value& self, Arguments& a) {
  const std::string_view old = text_at(e, a, 0, "old"), with = text_at(e, a, 1, "new");
  const int64_t limit = int_at(e, a, 2, "count", -1);
  const size_t size = self.string().size() + 1;
  if (e.failed() ||
      !e.charge(old.empty() ? size * (with.size() + 1) : size * (with.size() / old.size() + 1)))
    return Value();
  return Value(replace(self.string(), old, with, limit));
}
template <From kFrom>
Value find_method_of(Evaluator& e, const Value& self, Arguments& a) {
  const std::string_view part = text_at(e, a, 0, "sub");
  if (e.failed()) return Value();
  const std::string_view text = self.string();
  const size_t at = kFrom == From::kLeft ? find_text(text, part) : rfind_text(text, part);
  return Value(at == std::string_view::npos ? int64_t{-1}
                                            : static_cast<int64_t>(num_chars(text.substr(0, at))));
}
Value string_index(Evaluator& e, const Value& self, Arguments& a) {
  Value at = find_method_of<From::kLeft>(e, self, a);
  return !e.failed() && at.integer() < 0 ? e.fail("substring not found") : at;
}
Value string_count(Evaluator& e, const Value& self, Arguments& a) {
  const std::string_view part = text_at(e, a, 0, "sub");
  if (e.failed()) return Value();
  if (part.empty()) return Value(static_cast<int64_t>(num_chars(self.string()) + 1));
  return Value(static_cast<int64_t>(split(self.string(), part, -1).size() - 1));
}
Value join_method(Evaluator& e, const Value& self, Arguments& a) {
  if (a.positional.size() != 1) return e.fail("join takes exactly one argument");
  std::string out;
  bool first = true;
  for (const Value& item : e.iterate(a.positional[0])) {
    if (!item.is_string())
      return e.fail(fmt::format("sequence item: expected str instance, {} found", type_name(item)));
    if (!std::exchange(first, false)) out += self.string();
    out += item.string();
    if (!e.charge(self.string().size() + item.string().size())) return Value();
  }
  return Value(std::move(out));
}
Value format_method(Evaluator& e, const Value& self, Arguments& a) {
  return format_braces(e, self.string(), a);
}
Value remove_prefix(Evaluator& e, const Value& self, Arguments& a) {
  const std::string_view part = text_at(e, a, 0, "prefix"), text = self.string();
  return Value(text.starts_with(part) ? text.substr(part.size()) : text);
}
Value remove_suffix(Evaluator& e, const Value& self, Arguments& a) {
  const std::string_view part = text_at(e, a, 0, "suffix"), text = self.string();
  return Value(text.ends_with(part) ? text.substr(0, text.size() - part.size()) : text);
}
template <bool (*kIs)(char32_t)>
Value all_chars(Evaluator&, const Value& self, Arguments&) {
  const std::string& text = self.string();
  for (size_t pos = 0; pos < text.size();) {
    if (!kIs(tokenizer::next_char(text, pos))) return Value(false);
  }
  return Value(!text.empty());
}
bool is_alphanumeric(char32_t c) { return tokenizer::is_alphabetic(c) || tokenizer::is_numeric(c); }
template <bool (*kWanted)(char32_t), bool (*kOther)(char32_t)>
Value is_case(Evaluator&, const Value& self, Arguments&) {
  bool found = false;
  for (size_t pos = 0; pos < self.string().size();) {
    const char32_t c = tokenizer::next_char(self.string(), pos);
    if (kOther(c)) return Value(false);
    found = found || kWanted(c);
  }
  return Value(found);
}

// ---- Dicts
Value keys(Evaluator&, const Value& self, Arguments&) {
  std::vector<Value> out;
  for (const auto& [key, value] : self.dict().items) out.push_back(key);
  return Value::list(std::move(out));
}
Value values(Evaluator&, const Value& self, Arguments&) {
  std::vector<Value> out;
  for (const auto& [key, value] : self.dict().items) out.push_back(value);
  return Value::list(std::move(out));
}
Value items(Evaluator&, const Value& self, Arguments&) {
  std::vector<Value> out;
  for (const auto& [key, value] : self.dict().items) out.push_back(Value::tuple({key, value}));
  return Value::list(std::move(out));
}
Value get(Evaluator& e, const Value& self, Arguments& a) {
  if (a.positional.empty()) return e.fail("get takes a key");
  if (const Value* found = self.dict().find(a.positional[0])) return *found;
  const Value* fallback = a.find(1, "default");
  return fallback == nullptr ? Value(None{}) : *fallback;
}
Value copy(Evaluator&, const Value& self, Arguments&) { return self; }

// ---- Lists
Value list_index(Evaluator& e, const Value& self, Arguments& a) {
  if (a.positional.empty()) return e.fail("index takes a value");
  const std::vector<Value>& list = self.list().items;
  for (size_t i = 0; i < list.size(); ++i) {
    if (e.charge(std::min(list[i].weight(), a.positional[0].weight())) &&
        equal(list[i], a.positional[0])) {
      return Value(static_cast<int64_t>(i));
    }
  }
  return e.fail(fmt::format("{} is not in list", e.text(a.positional[0])));
}
Value list_count(Evaluator& e, const Value& self, Arguments& a) {
  if (a.positional.empty()) return e.fail("count takes a value");
  int64_t count = 0;
  for (const Value& item : self.list().items) {
    count +=
        e.charge(std::min(item.weight(), a.positional[0].weight())) && equal(item, a.positional[0]);
  }
  return Value(count);
}

Value refused(Evaluator& e, const Value& self, Arguments&) {
  return e.fail(
      fmt::format("the sandbox refuses to call a method that changes a {}", type_name(self)));
}

struct Row {
  std::string_view name;
  Function function;
};
constexpr Row kStringMethods[] = {
    {"capitalize", &mapped<&capitalize>},
    {"count", &string_count},
    {"endswith", &matches_any<&ends>},
    {"find", &find_method_of<From::kLeft>},
    {"format", &format_method},
    {"index", &string_index},
    {"isalnum", &all_chars<&is_alphanumeric>},
    {"isalpha", &all_chars<&tokenizer::is_alphabetic>},
    {"isdigit", &all_chars<&tokenizer::is_numeric>},
    {"islower", &is_case<&tokenizer::is_lower, &tokenizer::is_upper>},
    {"isspace", &all_chars<&is_python_space>},
    {"isupper", &is_case<&tokenizer::is_upper, &tokenizer::is_lower>},
    {"join", &join_method},
    {"lower", &mapped<&lower>},
    {"lstrip", &strip_method<Side::kLeft>},
    {"removeprefix", &remove_prefix},
    {"removesuffix", &remove_suffix},
    {"replace", &replace_method},
    {"rfind", &find_method_of<From::kRight>},
    {"rsplit", &split_method<From::kRight>},
    {"rstrip", &strip_method<Side::kRight>},
    {"split", &split_method<From::kLeft>},
    {"splitlines", &splitlines},
    {"startswith", &matches_any<&starts>},
    {"strip", &strip_method<Side::kBoth>},
    {"title", &mapped<&title>},
    {"upper", &mapped<&upper>},
};
constexpr Row kDictMethods[] = {
    {"clear", &refused},  {"copy", &copy},     {"get", &get},         {"items", &items},
    {"keys", &keys},      {"pop", &refused},   {"popitem", &refused}, {"setdefault", &refused},
    {"update", &refused}, {"values", &values},
};
constexpr Row kListMethods[] = {
    {"append", &refused}, {"clear", &refused},    {"copy", &copy},      {"count", &list_count},
    {"extend", &refused}, {"index", &list_index}, {"insert", &refused}, {"pop", &refused},
    {"remove", &refused}, {"reverse", &refused},  {"sort", &refused},
};

template <size_t N>
Function find_row(const Row (&rows)[N], std::string_view name) {
  for (const Row& row : rows) {
    if (row.name == name) return row.function;
  }
  return nullptr;
}

// ---- Global functions
Value raise_exception(Evaluator& e, const Value&, Arguments& a) {
  const Value* message = a.find(0, "message");
  return e.fail_with(invalid_argument(message == nullptr ? "the chat template raised an exception"
                                                         : e.text(*message)));
}
Value strftime_now(Evaluator& e, const Value&, Arguments& a) {
  const std::string format(text_at(e, a, 0, "format"));
  if (e.failed() || format.empty()) return Value("");
  if (format.size() > 200) return e.fail("a time format exceeds 200 bytes");
  std::tm local{};
  const std::time_t now = e.now();
  if (localtime_r(&now, &local) == nullptr) return e.fail("the time can't be told");
  char text[8192];  // no conversion makes more than 30 bytes of 2
  return Value(std::string(text, std::strftime(text, sizeof text, format.c_str(), &local)));
}
Value range(Evaluator& e, const Value&, Arguments& a) {
  for (const Value& bound : a.positional) {
    if (!bound.is_integral())
      return e.fail(
          fmt::format("'{}' object cannot be interpreted as an integer", type_name(bound)));
  }
  if (a.positional.empty() || a.positional.size() > 3)
    return e.fail("range takes one to three integers");
  const bool single = a.positional.size() == 1;
  const int64_t begin = single ? 0 : a.positional[0].integer(),
                end = a.positional[single ? 0 : 1].integer();
  const int64_t step = a.positional.size() == 3 ? a.positional[2].integer() : 1;
  if (step == 0) return e.fail("range() arg 3 must not be zero");
  std::vector<Value> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<int64_t>(items.size()) == kMaxRange)
      return e.fail(fmt::format("a range exceeds {} items", kMaxRange));
    if (!e.charge(sizeof(Value))) return Value();
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::list(std::move(items));
}
Value make_dict(Evaluator& e, const Value&, Arguments& a) {
  auto dict = std::make_shared<Dict>();
  if (!a.positional.empty()) {
    if (!a.positional[0].is_dict()) return e.fail("dict takes a dict or named arguments");
    *dict = a.positional[0].dict();
  }
  for (auto& [name, value] : a.named) {
    if (e.charge(dict->items.size())) dict->set(Value(name), std::move(value));
  }
  return Value(std::shared_ptr<const Dict>(std::move(dict)));
}
Value make_namespace(Evaluator& e, const Value&, Arguments& a) {
  Namespace* space = e.make_namespace();
  if (space == nullptr) return Value();
  if (!a.positional.empty() && a.positional[0].is_dict()) {
    for (const auto& [key, value] : a.positional[0].dict().items)
      space->members[e.text(key)] = value;
  }
  for (auto& [name, value] : a.named) space->members[name] = std::move(value);
  for (const auto& [name, value] : space->members) {
    if (name.starts_with('_'))
      return e.fail("a namespace has no attributes with an underscore first");
  }
  return Value(space);
}

constexpr Row kGlobals[] = {
    {"dict", &make_dict}, {"namespace", &make_namespace},  {"raise_exception", &raise_exception},
    {"range", &range},    {"strftime_now", &strftime_now},
};

}  // namespace

Function find_method(const Value& object, std::string_view name) {
  if (object.is_string()) return find_row(kStringMethods, name);
  if (object.is_dict()) return find_row(kDictMethods, name);
  return object.is_list() ? find_row(kListMethods, name) : nullptr;
}

Function find_global(std::string_view name) { return find_row(kGlobals, name); }

}  // namespace kvant::chat
