// The filters on numbers, sequences and anything else; those on text are in text_filters.cc.
#include "model/chat/filters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/chat/limits.h"
#include "model/chat/text.h"
#include "model/tokenizer/unicode.h"

namespace kvant::chat {
namespace {

// "a.b.0" of an item, as filters name attributes.
Value attribute_path(Evaluator& e, const Value& item, const Value& path) {
  if (!path.is_string()) return e.item(item, path);
  Value value = item;
  if (!e.charge(path.string().size())) return Value();
  for (const std::string& part : split(path.string(), ".", -1)) {
    const bool number = !part.empty() && part.size() < 10 &&
                        part.find_first_not_of("0123456789") == std::string::npos;
    value = e.item(value, number ? Value(static_cast<int64_t>(std::stol(part))) : Value(part));
    if (e.failed()) return Value();
  }
  return value;
}

// ---- Numbers
Value to_int(Evaluator& e, const Value& self, Arguments& a) {
  const Value* given = a.find(0, "default");
  const Value fallback = given == nullptr ? Value(int64_t{0}) : *given;
  if (self.is_integral()) return Value(self.integer());
  double number = self.is_float() ? self.number() : 0;
  if (self.is_string()) {
    const std::string text(strip(self.string(), Side::kBoth));
    const std::string_view digits =
        std::string_view(text).substr(text.starts_with('-') || text.starts_with('+') ? 1 : 0);
    if (!digits.empty() && digits.size() <= 18 &&
        digits.find_first_not_of("0123456789") == std::string_view::npos) {
      return Value(static_cast<int64_t>(std::stoll(text)));
    }
    char* end = nullptr;
    number = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0') return fallback;
  } else if (!self.is_float()) {
    return e.require_defined(self) ? fallback : Value();
  }
  return std::abs(number) < 9e18 ? Value(static_cast<int64_t>(number)) : fallback;
}
Value to_float(Evaluator& e, const Value& self, Arguments& a) {
  const Value* given = a.find(0, "default");
  const Value fallback = given == nullptr ? Value(0.0) : *given;
  if (self.is_number()) return Value(self.number());
  if (!self.is_string()) return e.require_defined(self) ? fallback : Value();
  const std::string text(strip(self.string(), Side::kBoth));
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  return text.empty() || *end != '\0' ? fallback : Value(number);
}
Value absolute(Evaluator& e, const Value& self, Arguments&) {
  if (self.is_float()) return Value(std::abs(self.number()));
  if (!self.is_integral())
    return e.fail(fmt::format("bad operand type for abs(): '{}'", type_name(self)));
  return self.integer() < 0 ? arithmetic(e, "-", Value(int64_t{0}), self) : Value(self.integer());
}
Value round_filter(Evaluator& e, const Value& self, Arguments& a) {
  if (!self.is_number()) return e.fail(fmt::format("type {} can't be rounded", type_name(self)));
  const int64_t precision = std::clamp<int64_t>(int_argument(e, a, 0, "precision", 0), -300, 300);
  const std::string method = text_argument(e, a, 1, "method", "common");
  const double scale = std::pow(10.0, static_cast<double>(precision)), number = self.number();
  if (method == "ceil") return Value(std::ceil(number * scale) / scale);
  if (method == "floor") return Value(std::floor(number * scale) / scale);
  if (method != "common") return e.fail("method must be common, ceil or floor");
  if (self.is_integral()) return Value(self.integer());
  // Python rounds the decimal value correctly, half to even: so does formatting with that many
  // digits.
  return precision >= 0
             ? Value(std::strtod(fmt::format("{:.{}f}", number, precision).c_str(), nullptr))
             : Value(std::nearbyint(number * scale) / scale);
}
Value sum(Evaluator& e, const Value& self, Arguments& a) {
  const Value* path = a.find(0, "attribute");
  const Value* start = a.find(1, "start");
  Value total = start == nullptr ? Value(int64_t{0}) : *start;
  for (const Value& item : e.iterate(self)) {
    total = e.add(total, path == nullptr ? item : attribute_path(e, item, *path));
    if (e.failed()) return Value();
  }
  return total;
}

// ---- Sequences
Value length(Evaluator& e, const Value& self, Arguments&) {
  if (self.is_string()) return Value(static_cast<int64_t>(num_chars(self.string())));
  if (self.is_undefined()) return Value(int64_t{0});
  if (self.is_list()) return Value(static_cast<int64_t>(self.list().items.size()));
  if (self.is_dict()) return Value(static_cast<int64_t>(self.dict().items.size()));
  return e.fail(fmt::format("object of type '{}' has no len()", type_name(self)));
}
Value first(Evaluator& e, const Value& self, Arguments&) {
  const std::vector<Value> items = e.iterate(self);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}
Value last(Evaluator& e, const Value& self, Arguments&) {
  const std::vector<Value> items = e.iterate(self);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}
Value to_list(Evaluator& e, const Value& self, Arguments&) { return Value::list(e.iterate(self)); }
Value join(Evaluator& e, const Value& self, Arguments& a) {
  const std::string separator = text_argument(e, a, 0, "d", "");
  const Value* path = a.find(1, "attribute");
  std::string out;
  bool first_item = true;
  for (const Value& item : e.iterate(self)) {
    if (e.failed() || !e.charge(separator.size())) return Value();
    if (!std::exchange(first_item, false)) out += separator;
    out += e.text(path == nullptr ? item : attribute_path(e, item, *path));
  }
  return Value(std::move(out));
}
Value reverse(Evaluator& e, const Value& self, Arguments&) {
  std::vector<Value> items = e.iterate(self);
  std::reverse(items.begin(), items.end());
  if (!self.is_string()) return Value::list(std::move(items));
  std::string out;
  for (const Value& c : items) out += c.string();
  return Value(std::move(out));
}

// What sort, unique, min and max compare by: an attribute, and lower case unless case counts.
Value sort_key(Evaluator& e, const Value& item, const Value* path, bool case_sensitive) {
  Value key = path == nullptr ? item : attribute_path(e, item, *path);
  if (!key.is_string() || case_sensitive || !e.charge(key.weight())) return key;
  return Value(lower(key.string()));
}
struct Keyed {
  Value key, item;
};
std::vector<Keyed> keyed_items(Evaluator& e, const Value& self, const Value* path,
                               bool case_sensitive) {
  std::vector<Keyed> keyed;
  for (const Value& item : e.iterate(self)) {
    if (!e.charge(sizeof(Keyed))) return {};
    keyed.push_back({sort_key(e, item, path, case_sensitive), item});
  }
  return keyed;
}
bool less(Evaluator& e, const Value& a, const Value& b) {
  if (!e.charge(std::min(a.weight(), b.weight()))) return false;
  const std::optional<int> order = compare(a, b);
  if (!order)
    e.fail(fmt::format("'<' not supported between instances of '{}' and '{}'", type_name(a),
                       type_name(b)));
  return order.value_or(0) < 0;
}
// A merge sort: std::stable_sort may misbehave when a comparison fails half-way.
void merge_sort(Evaluator& e, std::vector<Keyed>& items, bool descending) {
  if (items.size() < 2 || e.failed()) return;
  const auto middle = items.begin() + static_cast<ptrdiff_t>(items.size() / 2);
  std::vector<Keyed> left(items.begin(), middle), right(middle, items.end()), merged;
  merge_sort(e, left, descending);
  merge_sort(e, right, descending);
  size_t i = 0, j = 0;
  while (i < left.size() && j < right.size()) {
    const bool take_right =
        descending ? less(e, left[i].key, right[j].key) : less(e, right[j].key, left[i].key);
    merged.push_back(take_right ? right[j++] : left[i++]);
  }
  merged.insert(merged.end(), left.begin() + static_cast<ptrdiff_t>(i), left.end());
  merged.insert(merged.end(), right.begin() + static_cast<ptrdiff_t>(j), right.end());
  items = std::move(merged);
}
Value unkeyed(std::vector<Keyed> keyed) {
  std::vector<Value> items;
  for (Keyed& k : keyed) items.push_back(std::move(k.item));
  return Value::list(std::move(items));
}
Value sort(Evaluator& e, const Value& self, Arguments& a) {
  std::vector<Keyed> keyed =
      keyed_items(e, self, a.find(2, "attribute"), flag_argument(a, 1, "case_sensitive", false));
  merge_sort(e, keyed, flag_argument(a, 0, "reverse", false));
  return unkeyed(std::move(keyed));
}
Value dictsort(Evaluator& e, const Value& self, Arguments& a) {
  if (!self.is_dict())
    return e.fail(fmt::format("'{}' object has no attribute 'items'", type_name(self)));
  const bool by_value = text_argument(e, a, 1, "by", "key") == "value";
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : self.dict().items) {
    const bool case_sensitive = flag_argument(a, 0, "case_sensitive", false);
    keyed.push_back(
        {sort_key(e, by_value ? value : key, nullptr, case_sensitive), Value::tuple({key, value})});
  }
  merge_sort(e, keyed, flag_argument(a, 2, "reverse", false));
  return unkeyed(std::move(keyed));
}
Value unique(Evaluator& e, const Value& self, Arguments& a) {
  std::vector<Keyed> kept;
  for (Keyed& k :
       keyed_items(e, self, a.find(1, "attribute"), flag_argument(a, 0, "case_sensitive", false))) {
    const bool seen = std::any_of(kept.begin(), kept.end(), [&](const Keyed& other) {
      return e.charge(std::min(k.key.weight(), other.key.weight())) && equal(k.key, other.key);
    });
    if (!seen) kept.push_back(std::move(k));
    if (e.failed()) return Value();
  }
  return unkeyed(std::move(kept));
}
template <bool kLargest>
Value extreme(Evaluator& e, const Value& self, Arguments& a) {
  std::vector<Keyed> keyed =
      keyed_items(e, self, a.find(1, "attribute"), flag_argument(a, 0, "case_sensitive", false));
  if (keyed.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  size_t best = 0;
  for (size_t i = 1; i < keyed.size() && !e.failed(); ++i) {
    if (kLargest ? less(e, keyed[best].key, keyed[i].key) : less(e, keyed[i].key, keyed[best].key))
      best = i;
  }
  return keyed[best].item;
}
Value groupby(Evaluator& e, const Value& self, Arguments& a) {
  const Value* path = a.find(0, "attribute");
  if (path == nullptr) return e.fail("groupby needs an attribute");
  std::vector<Keyed> keyed =
      keyed_items(e, self, path, flag_argument(a, 2, "case_sensitive", false));
  merge_sort(e, keyed, false);
  std::vector<Value> groups;
  for (size_t i = 0; i < keyed.size() && !e.failed();) {
    const Value name = attribute_path(e, keyed[i].item, *path);
    std::vector<Value> members;
    const Value key = keyed[i].key;
    for (; i < keyed.size() && e.charge(key.weight()) && equal(keyed[i].key, key); ++i)
      members.push_back(keyed[i].item);
    groups.push_back(Value::tuple({name, Value::list(std::move(members))}));
  }
  return Value::list(std::move(groups));
}
Value batch(Evaluator& e, const Value& self, Arguments& a) {
  const int64_t size = int_argument(e, a, 0, "linecount", 1);
  if (size < 1) return e.fail("batch needs a count of 1 or more");
  const Value* fill = a.find(1, "fill_with");
  std::vector<Value> rows, row;
  for (const Value& item : e.iterate(self)) {
    row.push_back(item);
    if (static_cast<int64_t>(row.size()) == size)
      rows.push_back(Value::list(std::exchange(row, {})));
  }
  if (row.empty()) return Value::list(std::move(rows));
  while (fill != nullptr && static_cast<int64_t>(row.size()) < size && e.charge(1))
    row.push_back(*fill);
  rows.push_back(Value::list(std::move(row)));
  return Value::list(std::move(rows));
}
Value items_filter(Evaluator& e, const Value& self, Arguments&) {
  std::vector<Value> items;
  if (self.is_undefined()) return Value::list({});
  if (!self.is_dict()) return e.fail("Can only get item pairs from a mapping.");
  for (const auto& [key, value] : self.dict().items) items.push_back(Value::tuple({key, value}));
  return Value::list(std::move(items));
}

// ---- Functions over sequences
Value map(Evaluator& e, const Value& self, Arguments& a) {
  const Value* path = a.find(SIZE_MAX, "attribute");
  const Value* fallback = a.find(SIZE_MAX, "default");
  if (path == nullptr && a.positional.empty()) return e.fail("map requires a filter argument");
  if (!self.truthy()) return Value::list({});
  std::vector<Value> out;
  for (const Value& item : e.iterate(self)) {
    if (e.failed()) return Value();
    if (path != nullptr) {
      Value value = attribute_path(e, item, *path);
      out.push_back(value.is_undefined() && fallback != nullptr ? *fallback : std::move(value));
      continue;
    }
    if (!e.charge((a.positional.size() + a.named.size()) * sizeof(Value))) return Value();
    Arguments rest{{a.positional.begin() + 1, a.positional.end()}, a.named};
    out.push_back(e.filter(e.text(a.positional[0]), item, rest));
  }
  return Value::list(std::move(out));
}
enum class Keep : uint8_t { kPassing, kFailing };
Value choose(Evaluator& e, const Value& self, const Arguments& a, Keep keep, const Value* path) {
  const size_t test_at = path == nullptr ? 0 : 1;
  std::vector<Value> out;
  if (!self.truthy()) return Value::list({});  // none, too, is nothing to go through
  for (const Value& item : e.iterate(self)) {
    const Value value = path == nullptr ? item : attribute_path(e, item, *path);
    if (e.failed()) return Value();
    bool passes = value.truthy();
    if (a.positional.size() > test_at) {
      if (!e.charge((a.positional.size() + a.named.size()) * sizeof(Value))) return Value();
      Arguments rest{
          {a.positional.begin() + static_cast<ptrdiff_t>(test_at) + 1, a.positional.end()},
          a.named};
      passes = e.test(e.text(a.positional[test_at]), value, rest);
    }
    if (passes == (keep == Keep::kPassing)) out.push_back(item);
  }
  return Value::list(std::move(out));
}
template <Keep kKeep>
Value by_test(Evaluator& e, const Value& self, Arguments& a) {
  return choose(e, self, a, kKeep, nullptr);
}
template <Keep kKeep>
Value by_attribute(Evaluator& e, const Value& self, Arguments& a) {
  if (a.positional.empty()) return e.fail("Missing parameter for attribute name");
  const Value path = a.positional[0];
  return choose(e, self, a, kKeep, &path);
}

// ---- Others
Value default_filter(Evaluator&, const Value& self, Arguments& a) {
  const Value* value = a.find(0, "default_value");
  const bool empty = flag_argument(a, 1, "boolean", false) ? !self.truthy() : self.is_undefined();
  return !empty ? self : (value == nullptr ? Value("") : *value);
}
Value attr(Evaluator& e, const Value& self, Arguments& a) {
  return e.attribute(self, text_argument(e, a, 0, "name", ""));
}
Value same(Evaluator&, const Value& self, Arguments&) { return self; }

constexpr FilterRow kFilters[] = {
    {"abs", &absolute},
    {"attr", &attr},
    {"batch", &batch},
    {"count", &length},
    {"d", &default_filter},
    {"default", &default_filter},
    {"dictsort", &dictsort},
    {"first", &first},
    {"float", &to_float},
    {"groupby", &groupby},
    {"int", &to_int},
    {"items", &items_filter},
    {"join", &join},
    {"last", &last},
    {"length", &length},
    {"list", &to_list},
    {"map", &map},
    {"max", &extreme<true>},
    {"min", &extreme<false>},
    {"reject", &by_test<Keep::kFailing>},
    {"rejectattr", &by_attribute<Keep::kFailing>},
    {"reverse", &reverse},
    {"round", &round_filter},
    {"safe", &same},
    {"select", &by_test<Keep::kPassing>},
    {"selectattr", &by_attribute<Keep::kPassing>},
    {"sort", &sort},
    {"sum", &sum},
    {"unique", &unique},
};

Function find(std::span<const FilterRow> rows, std::string_view name) {
  for (const FilterRow& row : rows) {
    if (row.name == name) return row.function;
  }
  return nullptr;
}

}  // namespace

Function find_filter(std::string_view name) {
  const Function function = find(kFilters, name);
  return function != nullptr ? function : find(text_filters(), name);
}

}  // namespace kvant::chat
