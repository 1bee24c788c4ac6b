#include <fmt/format.h>

#include <algorithm>

#include "model/chat/evaluator.h"
#include "model/chat/limits.h"
#include "model/chat/text.h"
#include "model/tokenizer/unicode.h"

namespace kvant::chat {

Value Evaluator::evaluate(const Node& node) {
  if (failed() || !charge(0)) return Value();
  if (depth_ >= kMaxEvaluationDepth) {
    return fail_with(exhausted(fmt::format("chat template, line {}: calls nest more than {} deep",
                                           line_, kMaxEvaluationDepth)));
  }
  ++depth_;
  line_ = node.line;
  Value value = evaluate_now(node);
  --depth_;
  return value;
}

Value Evaluator::evaluate_now(const Node& node) {
  switch (node.kind) {
    case NodeKind::kConstant:
      return node.value;
    case NodeKind::kName:
      return evaluate_name(node);
    case NodeKind::kList:
      return checked(Value::list(evaluate_all(node, 0)));
    case NodeKind::kTuple:
      return checked(Value::tuple(evaluate_all(node, 0)));
    case NodeKind::kDict:
      return evaluate_dict(node);
    case NodeKind::kAttribute:
      return attribute(evaluate(*node.children[0]), node.text);
    case NodeKind::kIndex: {
      const Value object = evaluate(*node.children[0]);
      return item(object, evaluate(*node.children[1]));
    }
    case NodeKind::kSlice:
      return evaluate_slice(node);
    case NodeKind::kCall:
      return evaluate_call(node);
    case NodeKind::kFilter:
      return evaluate_filter(node, nullptr);
    case NodeKind::kTest:
      return evaluate_test(node);
    case NodeKind::kUnary:
      return evaluate_unary(node);
    case NodeKind::kBinary:
      return evaluate_binary(node);
    case NodeKind::kAnd: {
      Value left = evaluate(*node.children[0]);
      return left.truthy() ? evaluate(*node.children[1]) : left;
    }
    case NodeKind::kOr: {
      Value left = evaluate(*node.children[0]);
      return left.truthy() ? left : evaluate(*node.children[1]);
    }
    case NodeKind::kConcat:
      return evaluate_concat(node);
    case NodeKind::kCompare:
      return evaluate_compare(node);
    case NodeKind::kConditional:
      return evaluate_conditional(node);
    default:
      return fail("a statement stands where an expression belongs");
  }
}

Value Evaluator::evaluate_name(const Node& node) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    if (!charge(scope->variables.size() + node.text.size())) return Value();
    for (const auto& [name, value] : scope->variables) {
      if (name == node.text) return value;
    }
  }
  if (const Function function = find_global(node.text)) {
    auto callable = std::make_shared<Callable>();
    callable->name = node.text;
    callable->call = [function](Evaluator& e, Arguments& arguments) {
      return function(e, Value(), arguments);
    };
    return Value(std::shared_ptr<const Callable>(std::move(callable)));
  }
  return Value::undefined(fmt::format("'{}' is undefined", shortened(node.text)));
}

std::vector<Value> Evaluator::evaluate_all(const Node& node, size_t first) {
  std::vector<Value> values;
  for (size_t i = first; i < node.children.size() && !failed(); ++i)
    values.push_back(evaluate(*node.children[i]));
  return values;
}

Arguments Evaluator::evaluate_arguments(const Node& node, size_t first) {
  Arguments arguments;
  arguments.positional = evaluate_all(node, first);
  for (const auto& [name, value] : node.named) arguments.named.emplace_back(name, evaluate(*value));
  return arguments;
}

Value Evaluator::evaluate_dict(const Node& node) {
  auto dict = std::make_shared<Dict>();
  for (size_t i = 0; i < node.children.size() && charge(dict->items.size()); i += 2) {
    Value key = evaluate(*node.children[i]);
    if (key.is_list() || key.is_dict())
      return fail(fmt::format("unhashable type: '{}'", type_name(key)));
    dict->set(std::move(key), evaluate(*node.children[i + 1]));
  }
  return checked(Value(std::shared_ptr<const Dict>(std::move(dict))));
}

Value Evaluator::evaluate_slice(const Node& node) {
  const Value object = evaluate(*node.children[0]);
  Value bounds[3];
  const Value* given[3] = {};
  for (size_t i = 0; i < 3; ++i) {
    if (node.children[i + 1] == nullptr) continue;
    bounds[i] = evaluate(*node.children[i + 1]);
    if (!bounds[i].is_none()) given[i] = &bounds[i];
  }
  return failed() ? Value() : slice(*this, object, given[0], given[1], given[2]);
}

Value Evaluator::evaluate_call(const Node& node) {
  const Value callee = evaluate(*node.children[0]);
  Arguments arguments = evaluate_arguments(node, 1);
  return failed() ? Value() : call(callee, arguments);
}

Value Evaluator::call(const Value& callee, Arguments& arguments) {
  if (!require_defined(callee) || !charge(callee, arguments)) return Value();
  if (!callee.is_callable())
    return fail(fmt::format("'{}' object is not callable", type_name(callee)));
  if (depth_ >= kMaxEvaluationDepth) {
    return fail_with(exhausted(fmt::format("chat template, line {}: calls nest more than {} deep",
                                           line_, kMaxEvaluationDepth)));
  }
  depth_ += 8;  // a macro's body costs more stack than an expression
  Value value = callee.callable().call(*this, arguments);
  depth_ -= 8;
  return failed() || !charge(size_of(value)) ? Value() : checked(std::move(value));
}

Value Evaluator::evaluate_filter(const Node& node, const Value* operand) {
  Value input;
  if (node.children[0] != nullptr) {
    // In the filter chain of a block the innermost filter has no operand but the block's text.
    input = operand != nullptr ? evaluate_filter(*node.children[0], operand)
                               : evaluate(*node.children[0]);
  } else if (operand != nullptr) {
    input = *operand;
  }
  Arguments arguments = evaluate_arguments(node, 1);
  line_ = node.line;
  return failed() ? Value() : filter(node.text, input, arguments);
}

Value Evaluator::filter(std::string_view name, const Value& operand, Arguments& arguments) {
  const Function function = find_filter(name);
  if (function == nullptr) {
    return fail_with(corrupt(fmt::format("chat template, line {}: filter '{}' is not supported",
                                         line_, shortened(name))));
  }
  if (!charge(operand, arguments)) return Value();
  Value value = function(*this, operand, arguments);
  return failed() || !charge(size_of(value)) ? Value() : checked(std::move(value));
}

Value Evaluator::evaluate_test(const Node& node) {
  const Value operand = evaluate(*node.children[0]);
  Arguments arguments = evaluate_arguments(node, 1);
  if (failed()) return Value();
  return Value(test(node.text, operand, arguments) != node.negated);
}

bool Evaluator::test(std::string_view name, const Value& operand, Arguments& arguments) {
  const Function function = find_test(name);
  if (function == nullptr) {
    fail_with(corrupt(
        fmt::format("chat template, line {}: test '{}' is not supported", line_, shortened(name))));
    return false;
  }
  return charge(operand, arguments) && function(*this, operand, arguments).truthy();
}

Value Evaluator::evaluate_unary(const Node& node) {
  const Value operand = evaluate(*node.children[0]);
  if (failed()) return Value();
  if (node.text == "not") return Value(!operand.truthy());
  if (!require_defined(operand)) return Value();
  if (!operand.is_number())
    return fail(fmt::format("bad operand type for unary {}: '{}'", node.text, type_name(operand)));
  if (operand.is_float()) return node.text == "-" ? Value(-operand.number()) : operand;
  return arithmetic(*this, node.text, Value(int64_t{0}), operand);
}

Value Evaluator::evaluate_binary(const Node& node) {
  const Value left = evaluate(*node.children[0]);
  const Value right = evaluate(*node.children[1]);
  line_ = node.line;
  if (failed() || !require_defined(left) || !require_defined(right)) return Value();
  return checked(arithmetic(*this, node.text, left, right));
}

Value Evaluator::add(const Value& left, const Value& right) {
  return arithmetic(*this, "+", left, right);
}

Value Evaluator::evaluate_concat(const Node& node) {
  std::string joined;
  for (const NodePtr& part : node.children) {
    const Value value = evaluate(*part);
    if (failed()) return Value();
    joined += text(value);
  }
  return Value(std::move(joined));
}

Value Evaluator::evaluate_compare(const Node& node) {
  Value left = evaluate(*node.children[0]);
  for (size_t i = 0; i < node.names.size(); ++i) {
    Value right = evaluate(*node.children[i + 1]);
    if (failed() || !charge(std::min(left.weight(), right.weight()))) return Value();
    if (!compare_by(node.names[i], left, right)) return failed() ? Value() : Value(false);
    left = std::move(right);
  }
  return Value(true);
}

bool Evaluator::compare_by(std::string_view op, const Value& left, const Value& right) {
  if (op == "==") return equal(left, right);
  if (op == "!=") return !equal(left, right);
  if (op == "in") return contains(right, left);
  if (op == "not in") return !contains(right, left);
  if (!require_defined(left) || !require_defined(right)) return false;
  const std::optional<int> order = compare(left, right);
  if (!order) {
    fail(fmt::format("'{}' not supported between instances of '{}' and '{}'", op, type_name(left),
                     type_name(right)));
    return false;
  }
  if (op == "<") return *order < 0;
  if (op == "<=") return *order <= 0;
  return op == ">" ? *order > 0 : *order >= 0;
}

bool Evaluator::contains(const Value& container, const Value& value) {
  if (!charge(size_of(container) + size_of(value))) return false;
  if (container.is_string()) {
    if (value.is_string())
      return find_text(container.string(), value.string()) != std::string::npos;
    fail(fmt::format("'in <string>' requires string as left operand, not {}", type_name(value)));
    return false;
  }
  if (container.is_dict()) return container.dict().find(value) != nullptr;
  if (container.is_undefined()) return false;
  if (!container.is_list()) {
    fail(fmt::format("argument of type '{}' is not iterable", type_name(container)));
    return false;
  }
  const std::vector<Value>& items = container.list().items;
  return std::any_of(items.begin(), items.end(), [&](const Value& item) {
    return charge(std::min(item.weight(), value.weight())) && equal(item, value);
  });
}

Value Evaluator::evaluate_conditional(const Node& node) {
  if (evaluate(*node.children[1]).truthy()) return evaluate(*node.children[0]);
  if (node.children[2] != nullptr) return evaluate(*node.children[2]);
  return Value::undefined(
      "the inline if-expression evaluated to false and no else section was defined");
}

// ---- Parts of values
namespace {

std::string_view object_name(const Value& value) {
  return value.is_none() ? "None" : type_name(value);
}

Value missing(const Value& object, std::string_view name) {
  return Value::undefined(fmt::format("'{}{}' has no attribute '{}'", object_name(object),
                                      object.is_none() ? "" : " object", shortened(name)));
}

Value bind(const Value& object, std::string_view name, Function function) {
  auto callable = std::make_shared<Callable>();
  callable->name = name;
  callable->depth = object.depth() + 1;
  callable->call = [object, function](Evaluator& e, Arguments& arguments) {
    return e.charge(size_of(object)) ? function(e, object, arguments) : Value();
  };
  return Value(std::shared_ptr<const Callable>(std::move(callable)));
}

Value cycle(Evaluator& e, const Value& self, Arguments& arguments) {
  if (arguments.positional.empty()) return e.fail("no items for cycling given");
  return arguments
      .positional[static_cast<size_t>(self.loop().index0) % arguments.positional.size()];
}

Value loop_attribute(const Value& object, std::string_view name) {
  const Loop& loop = object.loop();
  const std::vector<Value>& items = loop.list->items;
  const auto length = static_cast<int64_t>(items.size());
  const int64_t i = loop.index0;
  const std::pair<std::string_view, int64_t> numbers[] = {
      {"index", i + 1},
      {"index0", i},
      {"length", length},
      {"revindex", length - i},
      {"revindex0", length - i - 1},
      {"depth", 1},
      {"depth0", 0},
  };
  for (const auto& [known, number] : numbers) {
    if (known == name) return Value(number);
  }
  if (name == "first") return Value(i == 0);
  if (name == "last") return Value(i + 1 == length);
  if (name == "previtem") {
    return i > 0 ? items[static_cast<size_t>(i) - 1]
                 : Value::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return i + 1 < length ? items[static_cast<size_t>(i) + 1]
                          : Value::undefined("there is no next item");
  }
  if (name == "cycle") return bind(object, name, &cycle);
  return missing(object, name);
}

}  // namespace

Value Evaluator::attribute(const Value& object, std::string_view name) {
  if (failed() || !require_defined(object) || !charge(name.size())) return Value();
  if (object.is_loop()) return loop_attribute(object, name);
  if (object.is_namespace()) {
    const auto found = object.space().members.find(name);
    return found != object.space().members.end() ? found->second : missing(object, name);
  }
  if (const Function method = find_method(object, name)) return checked(bind(object, name, method));
  if (!object.is_dict() || !charge(object.dict().items.size())) return missing(object, name);
  const Value* found = object.dict().find(name);
  return found != nullptr ? *found : missing(object, name);
}

Value Evaluator::item(const Value& object, const Value& key) {
  if (failed() || !require_defined(object) || !charge(size_of(key))) return Value();
  if (object.is_dict()) {
    if (!charge(object.dict().items.size())) return Value();
    if (const Value* found = object.dict().find(key)) return *found;
  } else if ((object.is_list() || object.is_string()) && key.is_integral()) {
    const std::vector<Value> chars = object.is_string() ? iterate(object) : std::vector<Value>();
    const std::vector<Value>& items = object.is_string() ? chars : object.list().items;
    const auto size = static_cast<int64_t>(items.size());
    const int64_t index = key.integer();
    if (index < size && index >= -size)
      return items[static_cast<size_t>(index < 0 ? index + size : index)];
  }
  if (key.is_string()) return attribute(object, key.string());
  return Value::undefined(fmt::format("{} object has no element {}", object_name(object),
                                      key.is_sequence() ? type_name(key) : repr(key)));
}

std::vector<Value> Evaluator::iterate(const Value& value) {
  std::vector<Value> items;
  if (failed() || !charge(size_of(value))) return items;
  if (value.is_list()) return value.list().items;
  if (value.is_dict()) {
    for (const auto& [key, ignored] : value.dict().items) items.push_back(key);
  } else if (value.is_string()) {
    if (!charge(value.string().size() * sizeof(Value) * 2)) return items;
    const std::string& text = value.string();
    for (size_t pos = 0; pos < text.size();) {
      const size_t begin = pos;
      tokenizer::next_char(text, pos);
      items.push_back(Value(std::string_view(text).substr(begin, pos - begin)));
    }
  } else if (!value.is_undefined()) {
    fail(fmt::format("'{}' object is not iterable", type_name(value)));
  }
  return items;
}

}  // namespace kvant::chat
