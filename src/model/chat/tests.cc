#include <fmt/format.h>

#include <algorithm>

#include "model/chat/evaluator.h"
#include "model/chat/text.h"
#include "model/tokenizer/unicode.h"

namespace kvant::chat {
namespace {

template <bool (Value::*kIs)() const>
Value is_kind(Evaluator&, const Value& self, Arguments&) {
  return Value((self.*kIs)());
}
template <bool (Value::*kIs)() const>
Value is_not_kind(Evaluator&, const Value& self, Arguments&) {
  return Value(!(self.*kIs)());
}
template <bool kWanted>
Value is_bool_value(Evaluator&, const Value& self, Arguments&) {
  return Value(self.is_bool() && self.truthy() == kWanted);
}
Value is_iterable(Evaluator&, const Value& self, Arguments&) {
  return Value(self.is_sequence() || self.is_undefined());
}
Value is_sequence(Evaluator&, const Value& self, Arguments&) {
  return Value(self.is_sequence() || self.is_undefined());
}
Value is_integer(Evaluator&, const Value& self, Arguments&) { return Value(self.is_int()); }

const Value* operand(Evaluator& e, const Arguments& a) {
  const Value* value = a.find(0, "other");
  if (value == nullptr) e.fail("a test lacks its argument");
  return value;
}
bool charged_equal(Evaluator& e, const Value& a, const Value& b) {
  return e.charge(std::min(a.weight(), b.weight())) && equal(a, b);
}
Value is_equal(Evaluator& e, const Value& self, Arguments& a) {
  const Value* other = operand(e, a);
  return Value(other != nullptr && charged_equal(e, self, *other));
}
Value is_unequal(Evaluator& e, const Value& self, Arguments& a) {
  const Value* other = operand(e, a);
  return Value(other != nullptr && !charged_equal(e, self, *other));
}
// kSign: which orders pass, bit 0 for less, 1 for equal, 2 for greater.
template <int kOrders>
Value is_ordered(Evaluator& e, const Value& self, Arguments& a) {
  const Value* other = operand(e, a);
  if (other == nullptr || !e.charge(std::min(self.weight(), other->weight()))) return Value();
  const std::optional<int> order = compare(self, *other);
  if (!order)
    return e.fail(
        fmt::format("'{}' and '{}' can't be ordered", type_name(self), type_name(*other)));
  return Value((kOrders >> (*order < 0 ? 0 : (*order == 0 ? 1 : 2)) & 1) != 0);
}
Value is_in(Evaluator& e, const Value& self, Arguments& a) {
  const Value* container = a.find(0, "seq");
  return container == nullptr ? e.fail("test 'in' lacks its argument")
                              : Value(e.contains(*container, self));
}
Value is_same_as(Evaluator& e, const Value& self, Arguments& a) {
  const Value* other = operand(e, a);
  if (other == nullptr) return Value();
  return Value(type_name(self) == type_name(*other) && charged_equal(e, self, *other));
}

Value modulo(Evaluator& e, const Value& self, const Value& divisor) {
  return e.require_defined(self) && e.require_defined(divisor) ? arithmetic(e, "%", self, divisor)
                                                               : Value();
}
Value is_odd(Evaluator& e, const Value& self, Arguments&) {
  return Value(equal(modulo(e, self, Value(int64_t{2})), Value(int64_t{1})));
}
Value is_even(Evaluator& e, const Value& self, Arguments&) {
  return Value(equal(modulo(e, self, Value(int64_t{2})), Value(int64_t{0})));
}
Value is_divisible(Evaluator& e, const Value& self, Arguments& a) {
  const Value* divisor = a.find(0, "num");
  if (divisor == nullptr) return e.fail("test 'divisibleby' lacks its argument");
  return Value(equal(modulo(e, self, *divisor), Value(int64_t{0})));
}

// str.islower and str.isupper: a cased letter, and none of the other case.
template <bool (*kWanted)(char32_t), bool (*kOther)(char32_t)>
Value is_case(Evaluator& e, const Value& self, Arguments&) {
  const std::string text = e.text(self);
  bool found = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = tokenizer::next_char(text, pos);
    if (kOther(c)) return Value(false);
    found = found || kWanted(c);
  }
  return Value(found);
}
Value is_filter(Evaluator& e, const Value& self, Arguments&) {
  return Value(find_filter(e.text(self)) != nullptr);
}
Value is_test(Evaluator& e, const Value& self, Arguments&) {
  return Value(find_test(e.text(self)) != nullptr);
}

struct Row {
  std::string_view name;
  Function function;
};
constexpr Row kTests[] = {
    {"!=", &is_unequal},
    {"<", &is_ordered<1>},
    {"<=", &is_ordered<3>},
    {"==", &is_equal},
    {">", &is_ordered<4>},
    {">=", &is_ordered<6>},
    {"boolean", &is_kind<&Value::is_bool>},
    {"callable", &is_kind<&Value::is_callable>},
    {"defined", &is_not_kind<&Value::is_undefined>},
    {"divisibleby", &is_divisible},
    {"eq", &is_equal},
    {"equalto", &is_equal},
    {"even", &is_even},
    {"false", &is_bool_value<false>},
    {"filter", &is_filter},
    {"float", &is_kind<&Value::is_float>},
    {"ge", &is_ordered<6>},
    {"greaterthan", &is_ordered<4>},
    {"gt", &is_ordered<4>},
    {"in", &is_in},
    {"integer", &is_integer},
    {"iterable", &is_iterable},
    {"le", &is_ordered<3>},
    {"lessthan", &is_ordered<1>},
    {"lower", &is_case<&tokenizer::is_lower, &tokenizer::is_upper>},
    {"lt", &is_ordered<1>},
    {"mapping", &is_kind<&Value::is_dict>},
    {"ne", &is_unequal},
    {"none", &is_kind<&Value::is_none>},
    {"number", &is_kind<&Value::is_number>},
    {"odd", &is_odd},
    {"sameas", &is_same_as},
    {"sequence", &is_sequence},
    {"string", &is_kind<&Value::is_string>},
    {"test", &is_test},
    {"true", &is_bool_value<true>},
    {"undefined", &is_kind<&Value::is_undefined>},
    {"upper", &is_case<&tokenizer::is_upper, &tokenizer::is_lower>},
};

}  // namespace

Function find_test(std::string_view name) {
  for (const Row& row : kTests) {
    if (row.name == name) return row.function;
  }
  return nullptr;
}

}  // namespace kvant::chat
