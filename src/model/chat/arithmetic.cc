// Operators on numbers, strings and lists, slices, and the two ways of Python to format.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/chat/evaluator.h"
#include "model/chat/limits.h"
#include "model/chat/text.h"
#include "model/tokenizer/unicode.h"

namespace kvant::chat {
namespace {

Value mismatch(Evaluator& e, std::string_view op, const Value& left, const Value& right) {
  return e.fail(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", op,
                            type_name(left), type_name(right)));
}

Value floor_divide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return Value(quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0));
}
Value floor_modulo(int64_t a, int64_t b) {
  const int64_t rest = a % b;
  return Value(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
}

Value power(Evaluator& e, int64_t base, int64_t exponent) {
  if (exponent < 0)
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  int64_t result = 1;
  if (base == 0 || base == 1) return Value(exponent == 0 ? int64_t{1} : base);
  if (base == -1) return Value(exponent % 2 == 0 ? int64_t{1} : int64_t{-1});
  for (int64_t i = 0; i < exponent; ++i) {  // at most 63 rounds before it overflows
    if (__builtin_mul_overflow(result, base, &result)) return e.fail("an integer exceeds 64 bits");
  }
  return Value(result);
}

Value on_integers(Evaluator& e, std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (op == "**") {
    return power(e, a, b);
  } else if (b == 0) {
    return e.fail("division by zero");
  } else if (op == "/") {
    return Value(static_cast<double>(a) / static_cast<double>(b));
  } else if (b == -1) {  // the one division that can overflow
    overflow = op == "//" && __builtin_sub_overflow(int64_t{0}, a, &result);
  } else {
    return op == "//" ? floor_divide(a, b) : floor_modulo(a, b);
  }
  return overflow ? e.fail("an integer exceeds 64 bits") : Value(result);
}

Value on_floats(Evaluator& e, std::string_view op, double a, double b) {
  if (op == "+") return Value(a + b);
  if (op == "-") return Value(a - b);
  if (op == "*") return Value(a * b);
  if (op == "**") return Value(std::pow(a, b));
  if (b == 0) return e.fail("float division by zero");
  if (op == "/") return Value(a / b);
  if (op == "//") return Value(std::floor(a / b));
  const double rest = std::fmod(a, b);
  return Value(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
}

// sequence · count; negative counts give nothing.
Value repeat(Evaluator& e, const Value& sequence, int64_t count) {
  const auto times = static_cast<size_t>(std::max<int64_t>(count, 0));
  const size_t size = std::max<size_t>(size_of(sequence), 1);
  if (times > kMaxOutputBytes / size || !e.charge(size * times)) {
    return e.failed() ? Value()
                      : e.fail_with(exhausted("chat template: a repeated sequence is too long"));
  }
  if (sequence.is_string()) {
    std::string text;
    for (size_t i = 0; i < times; ++i) text += sequence.string();
    return Value(std::move(text));
  }
  std::vector<Value> items;
  const std::vector<Value>& once = sequence.list().items;
  for (size_t i = 0; i < times; ++i) items.insert(items.end(), once.begin(), once.end());
  return sequence.list().is_tuple ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

Value join_lists(Evaluator& e, const Value& left, const Value& right) {
  if (!e.charge(size_of(left) + size_of(right))) return Value();
  std::vector<Value> items = left.list().items;
  items.insert(items.end(), right.list().items.begin(), right.list().items.end());
  return left.list().is_tuple ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

}  // namespace

Value arithmetic(Evaluator& e, std::string_view op, const Value& left, const Value& right) {
  if (left.is_integral() && right.is_integral())
    return on_integers(e, op, left.integer(), right.integer());
  if (left.is_number() && right.is_number()) return on_floats(e, op, left.number(), right.number());
  if (op == "%" && left.is_string()) return format_percent(e, left.string(), right);
  if (op == "*" && right.is_integral() && (left.is_string() || left.is_list()))
    return repeat(e, left, right.integer());
  if (op == "*" && left.is_integral() && (right.is_string() || right.is_list()))
    return repeat(e, right, left.integer());
  if (op != "+") return mismatch(e, op, left, right);
  if (left.is_string() && right.is_string()) {
    if (!e.charge(left.string().size() + right.string().size())) return Value();
    return Value(left.string() + right.string());
  }
  if (left.is_list() && right.is_list() && left.list().is_tuple == right.list().is_tuple) {
    return join_lists(e, left, right);
  }
  return mismatch(e, op, left, right);
}

Value slice(Evaluator& e, const Value& value, const Value* start, const Value* stop,
            const Value* step) {
  if (!e.require_defined(value)) return Value();
  if (!value.is_string() && !value.is_list())
    return e.fail(fmt::format("'{}' object can't be sliced", type_name(value)));
  for (const Value* bound : {start, stop, step}) {
    if (bound != nullptr && !bound->is_integral())
      return e.fail("slice indices must be integers or None");
  }
  const std::vector<Value> items = e.iterate(value);
  const auto size = static_cast<int64_t>(items.size());
  const int64_t stride =
      step == nullptr ? 1 : std::clamp<int64_t>(step->integer(), -size - 1, size + 1);
  if (stride == 0 && step->integer() == 0) return e.fail("slice step cannot be zero");
  const auto bound = [&](const Value* given, int64_t fallback) {
    if (given == nullptr) return fallback;
    int64_t at = given->integer();
    if (at < 0) at = std::max<int64_t>(at, -size - 1) + size;
    return std::clamp<int64_t>(at, stride < 0 ? -1 : 0, stride < 0 ? size - 1 : size);
  };
  const int64_t begin = bound(start, stride < 0 ? size - 1 : 0),
                end = bound(stop, stride < 0 ? -1 : size);
  std::vector<Value> picked;
  for (int64_t i = begin; stride > 0 ? i < end : i > end; i += stride)
    picked.push_back(items[static_cast<size_t>(i)]);
  if (value.is_list())
    return value.list().is_tuple ? Value::tuple(std::move(picked)) : Value::list(std::move(picked));
  std::string text;
  for (const Value& c : picked) text += c.string();
  return Value(std::move(text));
}

namespace {

// "[flags][width][.precision]" of a format, and what it does to text.
struct Layout {
  bool left = false;
  bool zeros = false;
  size_t width = 0;
  int precision = -1;
};
constexpr size_t kMaxWidth = 1000;

size_t read_number(std::string_view format, size_t& i) {
  size_t number = 0;
  for (; i < format.size() && format[i] >= '0' && format[i] <= '9'; ++i) {
    number = std::min(number * 10 + static_cast<size_t>(format[i] - '0'), kMaxWidth);
  }
  return number;
}

std::string laid_out(std::string text, const Layout& layout, bool number) {
  const size_t size = num_chars(text);
  if (size >= layout.width) return text;
  const size_t missing = layout.width - size;
  if (layout.left) return text + std::string(missing, ' ');
  if (!layout.zeros || !number) return std::string(missing, ' ') + text;
  const size_t sign = text.starts_with('-') ? 1 : 0;
  return text.substr(0, sign) + std::string(missing, '0') + text.substr(sign);
}

// The text of one conversion: s r d i f x.
Value converted(Evaluator& e, char type, const Value& value, const Layout& layout) {
  if (type == 's' || type == 'r')
    return Value(
        laid_out(type == 'r' && value.is_string() ? repr(value) : e.text(value), layout, false));
  if (!value.is_number())
    return e.fail(fmt::format("%{} format: a number is required, not {}", type, type_name(value)));
  const int precision = layout.precision < 0 ? 6 : layout.precision;
  if (type == 'f')
    return Value(laid_out(fmt::format("{:.{}f}", value.number(), precision), layout, true));
  const double number = std::trunc(value.number());
  if (!value.is_integral() && !(std::abs(number) < 9e18)) return e.fail("a number exceeds 64 bits");
  const int64_t integer = value.is_integral() ? value.integer() : static_cast<int64_t>(number);
  return Value(
      laid_out(type == 'x' ? fmt::format("{:x}", integer) : std::to_string(integer), layout, true));
}

}  // namespace

Value format_percent(Evaluator& e, std::string_view format, const Value& value) {
  if (!e.charge(format.size() + size_of(value))) return Value();
  const std::vector<Value> arguments =
      value.is_list() && value.list().is_tuple ? value.list().items : std::vector<Value>{value};
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    Layout layout;
    for (++i; i < format.size() && (format[i] == '-' || format[i] == '0'); ++i) {
      (format[i] == '-' ? layout.left : layout.zeros) = true;
    }
    layout.width = read_number(format, i);
    if (i < format.size() && format[i] == '.')
      layout.precision = static_cast<int>(std::min<size_t>(read_number(format, ++i), 100));
    if (i < format.size() && format[i] == '%') {
      out += '%';
      continue;
    }
    if (i >= format.size() ||
        std::string_view("srdifx").find(format[i]) == std::string_view::npos) {
      return e.fail("unsupported % format");
    }
    if (next == arguments.size()) return e.fail("not enough arguments for format string");
    const Value text = converted(e, format[i] == 'i' ? 'd' : format[i], arguments[next++], layout);
    if (e.failed() || !e.charge(text.string().size())) return Value();
    out += text.string();
  }
  if (next < arguments.size() && value.is_list())
    return e.fail("not all arguments converted during string formatting");
  return Value(std::move(out));
}

Value format_braces(Evaluator& e, std::string_view format, const Arguments& arguments) {
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    const bool twice = i + 1 < format.size() && format[i + 1] == format[i];
    if ((format[i] == '{' || format[i] == '}') && twice) {
      out += format[i++];
    } else if (format[i] != '{') {
      out += format[i];
    } else {
      const size_t end = format.find('}', i);
      if (end == std::string_view::npos) return e.fail("a replacement field has no '}'");
      const std::string_view field = format.substr(i + 1, end - i - 1);
      if (field.find_first_of(":!.[") != std::string_view::npos) {
        return e.fail(fmt::format("replacement field '{{{}}}' is not supported", shortened(field)));
      }
      const bool is_number =
          !field.empty() && field.find_first_not_of("0123456789") == std::string_view::npos;
      size_t at = 0, pos = 0;
      if (field.empty()) {
        at = next++;
      } else {
        at = is_number ? read_number(field, pos) : arguments.positional.size();
      }
      if (!e.charge(4 * arguments.named.size())) return Value();
      const Value* value = arguments.find(at, field);
      if (value == nullptr)
        return e.fail(fmt::format("format has no argument for '{{{}}}'", shortened(field)));
      const std::string text = e.text(*value);
      if (e.failed()) return Value();
      out += text;
      i = end;
    }
  }
  return Value(std::move(out));
}

}  // namespace kvant::chat
