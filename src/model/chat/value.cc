#include "model/chat/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/chat/limits.h"
#include "model/chat/text.h"
#include "model/tokenizer/unicode.h"

namespace kvant::chat {
namespace {

// Far above kMaxValueWeight, and no sum of a few of them overflows.
constexpr size_t kHeaviest = size_t{1} << 60;

Value make_list(std::vector<Value> items, bool is_tuple) {
  List list{std::move(items), is_tuple, 1, 1};
  for (const Value& item : list.items) {
    list.depth = std::max(list.depth, item.depth() + 1);
    list.weight = std::min(list.weight + item.weight(), kHeaviest);
  }
  return Value(std::make_shared<const List>(std::move(list)));
}

constexpr size_t kFewItems = 16;  // a dict up to here is searched through

// Equal for keys that are equal(): 1, 1.0 and true are one key.
size_t hash_of(const Value& key) {
  if (key.is_string()) return std::hash<std::string>{}(key.string());
  if (key.is_namespace()) return std::hash<const Namespace*>{}(&key.space());
  if (key.is_callable()) return std::hash<const Callable*>{}(&key.callable());
  return key.is_number() ? std::hash<double>{}(key.number()) : 0;
}

template <typename T>
int three_way(const T& a, const T& b) {
  return a < b ? -1 : (b < a ? 1 : 0);
}

}  // namespace

size_t Dict::index_of(const Value& key) const {
  if (items.size() <= kFewItems) {
    size_t i = 0;
    while (i < items.size() && !equal(items[i].first, key)) ++i;
    return i;
  }
  const auto [begin, end] = places_.equal_range(hash_of(key));
  const auto found =
      std::find_if(begin, end, [&](const auto& p) { return equal(items[p.second].first, key); });
  return found == end ? items.size() : found->second;
}

const Value* Dict::find(const Value& key) const {
  const size_t i = index_of(key);
  return i == items.size() ? nullptr : &items[i].second;
}

const Value* Dict::find(std::string_view key) const {
  if (items.size() > kFewItems) return find(Value(key));
  for (const auto& [k, v] : items) {
    if (k.is_string() && k.string() == key) return &v;
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  depth = std::max(depth, value.depth() + 1);
  weight = std::min(weight + key.weight() + value.weight(), kHeaviest);
  if (const size_t i = index_of(key); i < items.size()) {
    items[i].second = std::move(value);
    return;
  }
  items.emplace_back(std::move(key), std::move(value));
  if (items.size() <= kFewItems) return;
  for (size_t i = places_.size(); i < items.size(); ++i)
    places_.emplace(hash_of(items[i].first), i);
}

Value Value::undefined(std::string reason) {
  Value value;
  value.data_ = Undefined{shortened(reason, kMaxMessageBytes)};
  return value;
}

Value Value::list(std::vector<Value> items) { return make_list(std::move(items), false); }
Value Value::tuple(std::vector<Value> items) { return make_list(std::move(items), true); }

double Value::number() const {
  return is_float() ? std::get<double>(data_) : static_cast<double>(integer());
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_integral()) return integer() != 0;
  if (is_float()) return number() != 0;
  if (is_string()) return !string().empty();
  if (is_list()) return !list().items.empty();
  if (is_dict()) return !dict().items.empty();
  return true;
}

int Value::depth() const {
  if (is_list()) return list().depth;
  if (is_dict()) return dict().depth;
  if (is_loop()) return loop().list->depth + 1;
  return is_callable() ? callable().depth : 0;
}

size_t Value::weight() const {
  if (is_string()) return string().size() + 8;
  if (is_list()) return list().weight;
  return is_dict() ? dict().weight : 8;
}

const Value* Arguments::find(size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [n, value] : named) {
    if (n == name) return &value;
  }
  return nullptr;
}

std::string_view type_name(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "NoneType";
  if (value.is_bool()) return "bool";
  if (value.is_int()) return "int";
  if (value.is_float()) return "float";
  if (value.is_string()) return "str";
  if (value.is_list()) return value.list().is_tuple ? "tuple" : "list";
  if (value.is_dict()) return "dict";
  if (value.is_namespace()) return "Namespace";
  return value.is_loop() ? "LoopContext" : "function";
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return a.is_float() || b.is_float() ? a.number() == b.number() : a.integer() == b.integer();
  }
  if (a.is_string() && b.is_string()) return a.string() == b.string();
  if (a.is_list() && b.is_list()) {
    const List &x = a.list(), &y = b.list();
    return x.is_tuple == y.is_tuple &&
           std::equal(x.items.begin(), x.items.end(), y.items.begin(), y.items.end(), equal);
  }
  if (a.is_dict() && b.is_dict()) {
    const Dict &x = a.dict(), &y = b.dict();
    return x.items.size() == y.items.size() &&
           std::all_of(x.items.begin(), x.items.end(), [&](const std::pair<Value, Value>& item) {
             const Value* other = y.find(item.first);
             return other != nullptr && equal(item.second, *other);
           });
  }
  if (a.is_namespace() && b.is_namespace()) return &a.space() == &b.space();
  if (a.is_callable() && b.is_callable()) return &a.callable() == &b.callable();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

std::optional<int> compare(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return three_way(a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return three_way(a.number(), b.number());
  if (a.is_string() && b.is_string())
    return three_way(a.string(), b.string());  // UTF-8 keeps code point order
  if (!a.is_list() || !b.is_list() || a.list().is_tuple != b.list().is_tuple) return std::nullopt;
  const std::vector<Value>&x = a.list().items, &y = b.list().items;
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (!equal(x[i], y[i])) return compare(x[i], y[i]);
  }
  return three_way(x.size(), y.size());
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text =
      fmt::format("{}", value);  // shortest that reads back, exponent from 1e16 on, as Python
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string to_text(const Value& value) { return value.is_string() ? value.string() : repr(value); }

namespace {

std::string repr_string(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos,
             has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = tokenizer::next_char(text, pos);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : (c == '\r' ? "\\r" : "\\t");
    } else if (tokenizer::is_printable(c)) {
      tokenizer::append_utf8(c, out);
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else {
      out += c < 0x10000 ? fmt::format("\\u{:04x}", static_cast<uint32_t>(c))
                         : fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  return out + quote;
}

std::string repr_list(const List& list) {
  std::string out(1, list.is_tuple ? '(' : '[');
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out += ", ";
    out += repr(list.items[i]);
  }
  if (list.is_tuple && list.items.size() == 1) out += ',';
  return out + (list.is_tuple ? ')' : ']');
}

std::string repr_dict(const Dict& dict) {
  std::string out = "{";
  for (const auto& [key, value] : dict.items) {
    if (out.size() > 1) out += ", ";
    out += repr(key) + ": " + repr(value);
  }
  return out + "}";
}

}  // namespace

std::string repr(const Value& value) {
  if (value.is_undefined()) return {};
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.truthy() ? "True" : "False";
  if (value.is_int()) return std::to_string(value.integer());
  if (value.is_float()) return float_text(value.number());
  if (value.is_string()) return repr_string(value.string());
  if (value.is_list()) return repr_list(value.list());
  if (value.is_dict()) return repr_dict(value.dict());
  if (value.is_namespace()) return "<Namespace>";
  return value.is_loop() ? "<LoopContext>" : "<function>";
}

size_t size_of(const Value& value) {
  if (value.is_string()) return value.string().size();
  if (value.is_list()) return value.list().items.size() * sizeof(Value);
  if (value.is_dict()) return value.dict().items.size() * 2 * sizeof(Value);
  return 1;
}

}  // namespace kvant::chat
