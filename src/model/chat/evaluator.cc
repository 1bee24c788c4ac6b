#include "model/chat/evaluator.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/chat/lexer.h"
#include "model/chat/limits.h"
#include "model/chat/text.h"

namespace kvant::chat {

// A macro, or the body of a call block.
struct Evaluator::Macro {
  std::string name;
  const Node* body;
  const std::vector<std::string>* parameters;
  const Node*
      defaults;  // its children from 1 on are the parameters' defaults (null for none); may be null
  Scope* scope;  // where it was defined
};

// Namespaces may refer to one another in circles: their members go first.
Evaluator::~Evaluator() {
  for (const auto& space : namespaces_) space->members.clear();
}

Result<std::string> Evaluator::run(const Node& root, Variables variables) {
  std::string text;
  out_ = &text;
  scope_ = push_scope(nullptr);
  scope_->variables = std::move(variables);
  scope_ = push_scope(scope_);
  execute(root);
  if (failed()) return status_;
  return text;
}

Value Evaluator::fail(std::string_view message) {
  return fail_with(invalid_argument(
      fmt::format("chat template, line {}: {}", line_, shortened(message, kMaxMessageBytes))));
}

Value Evaluator::fail_with(Status status) {
  if (status_.ok()) status_ = std::move(status);
  return Value();
}

bool Evaluator::charge(size_t bytes) {
  work_ += 1 + static_cast<int64_t>(bytes / 4);
  if (work_ > max_work_) {
    fail_with(exhausted(
        fmt::format("chat template, line {}: more than {} steps of work", line_, max_work_)));
  }
  return !failed();
}

bool Evaluator::charge(const Value& operand, const Arguments& arguments) {
  size_t bytes = size_of(operand);
  for (const Value& value : arguments.positional) bytes += size_of(value);
  for (const auto& [name, value] : arguments.named) bytes += size_of(value) + name.size();
  return charge(bytes);
}

bool Evaluator::require_defined(const Value& value) {
  if (value.is_undefined()) fail(value.reason());
  return !failed();
}

Value Evaluator::checked(Value value) {
  if (value.depth() > kMaxValueDepth)
    return fail(fmt::format("a list nests more than {} deep", kMaxValueDepth));
  if (value.weight() > kMaxValueWeight)
    return fail(fmt::format("a value exceeds {} bytes", kMaxValueWeight));
  return value;
}

std::string Evaluator::text(const Value& value) {
  return charge(value.weight()) ? to_text(value) : std::string();
}

Namespace* Evaluator::make_namespace() {
  if (!charge(sizeof(Namespace))) return nullptr;
  namespaces_.push_back(std::make_unique<Namespace>());
  return namespaces_.back().get();
}

// ---- Scopes
Evaluator::Scope* Evaluator::push_scope(Scope* parent) {
  if (free_scopes_.empty()) free_scopes_.push_back(std::make_unique<Scope>());
  scopes_.push_back(std::move(free_scopes_.back()));
  free_scopes_.pop_back();
  Scope* scope = scopes_.back().get();
  scope->parent = parent;
  return scope;
}

// Leaves the innermost scope; a macro's keeps it alive.
void Evaluator::pop_scope() {
  Scope* left = scope_;
  scope_ = left->parent;
  if (left->captured) {
    charge(sizeof(Scope) * 4);
    return;
  }
  const auto at = std::find_if(scopes_.rbegin(), scopes_.rend(),
                               [&](const auto& s) { return s.get() == left; });
  left->variables.clear();
  free_scopes_.push_back(std::move(*at));
  scopes_.erase(std::next(at).base());
}

void Evaluator::assign(const std::string& name, Value value) {
  if (!charge(scope_->variables.size() + name.size())) return;
  for (auto& [known, old] : scope_->variables) {
    if (known != name) continue;
    old = std::move(value);
    return;
  }
  scope_->variables.emplace_back(name, std::move(value));
}

void Evaluator::unpack(const std::vector<std::string>& names, const Value& value) {
  if (names.size() == 1) return assign(names[0], value);
  const std::vector<Value> parts = iterate(value);
  if (failed()) return;
  if (parts.size() != names.size()) {
    fail(fmt::format("{} values for {} names", parts.size(), names.size()));
    return;
  }
  for (size_t i = 0; i < names.size(); ++i) assign(names[i], parts[i]);
}

// ---- Statements
void Evaluator::write(std::string_view text) {
  charge(text.size());
  if (out_->size() + text.size() > kMaxOutputBytes) {
    fail_with(exhausted(
        fmt::format("chat template, line {}: more than {} bytes of text", line_, kMaxOutputBytes)));
  }
  if (!failed()) *out_ += text;
}

Evaluator::Flow Evaluator::execute(const Node& node) {
  line_ = node.line;
  if (!charge(0)) return Flow::kNext;
  switch (node.kind) {
    case NodeKind::kText:
      write(node.text);
      return Flow::kNext;
    case NodeKind::kOutput: {
      const Value value = evaluate(*node.children[0]);
      if (!failed()) write(text(value));
      return Flow::kNext;
    }
    case NodeKind::kBlock:
      return execute_block(node);
    case NodeKind::kIf:
      return execute_if(node);
    case NodeKind::kFor:
      execute_for(node);
      return Flow::kNext;
    case NodeKind::kSet:
      execute_set(node);
      return Flow::kNext;
    case NodeKind::kSetBlock:
      execute_set_block(node);
      return Flow::kNext;
    case NodeKind::kMacro:
      define_macro(node);
      return Flow::kNext;
    case NodeKind::kCallBlock:
      execute_call_block(node);
      return Flow::kNext;
    case NodeKind::kFilterBlock:
      execute_filter_block(node);
      return Flow::kNext;
    case NodeKind::kWith:
      return execute_with(node);
    case NodeKind::kBreak:
      return Flow::kBreak;
    case NodeKind::kContinue:
      return Flow::kContinue;
    default:
      fail("an expression stands where a statement belongs");
      return Flow::kNext;
  }
}

Evaluator::Flow Evaluator::execute_block(const Node& node) {
  for (const NodePtr& child : node.children) {
    const Flow flow = execute(*child);
    if (failed()) return Flow::kNext;
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::execute_if(const Node& node) {
  size_t i = 0;
  for (; i + 1 < node.children.size(); i += 2) {
    const bool taken = evaluate(*node.children[i]).truthy();
    if (failed()) return Flow::kNext;
    if (taken) return execute(*node.children[i + 1]);
  }
  return i < node.children.size() ? execute(*node.children[i]) : Flow::kNext;
}

void Evaluator::execute_for(const Node& node) {
  std::vector<Value> items = iterate(evaluate(*node.children[0]));
  if (node.children[1] != nullptr) items = filtered_items(node, std::move(items));
  if (failed()) return;
  if (!items.empty()) {
    run_loop(node, items);
  } else if (node.children[3] != nullptr) {
    scope_ = push_scope(scope_);
    execute(*node.children[3]);
    pop_scope();
  }
}

std::vector<Value> Evaluator::filtered_items(const Node& node, std::vector<Value> items) {
  std::vector<Value> kept;
  for (Value& item : items) {
    scope_ = push_scope(scope_);
    unpack(node.names, item);
    const bool keep = !failed() && evaluate(*node.children[1]).truthy();
    pop_scope();
    if (failed()) return {};
    if (keep) kept.push_back(std::move(item));
  }
  return kept;
}

void Evaluator::run_loop(const Node& node, const std::vector<Value>& items) {
  const Value list = checked(Value::list(items));
  for (size_t i = 0; i < items.size() && !failed(); ++i) {
    scope_ = push_scope(scope_);
    auto loop = std::make_shared<Loop>();
    *loop = {static_cast<int64_t>(i), list.shared_list()};
    assign("loop", Value(std::shared_ptr<const Loop>(std::move(loop))));
    unpack(node.names, items[i]);
    const Flow flow = failed() ? Flow::kNext : execute(*node.children[2]);
    pop_scope();
    if (flow == Flow::kBreak) break;
  }
}

void Evaluator::execute_set(const Node& node) {
  Value value = evaluate(*node.children[0]);
  if (failed()) return;
  if (node.text.empty()) return unpack(node.names, value);
  Node name;
  name.kind = NodeKind::kName;
  name.text = node.text;
  const Value space = evaluate_name(name);
  if (!space.is_namespace()) {
    fail(fmt::format("cannot set attribute '{}' of '{}': it is no namespace", node.names[0],
                     node.text));
    return;
  }
  if (node.names[0].starts_with('_')) {
    fail(
        fmt::format("a namespace has no attribute '{}': names with an underscore first are refused",
                    node.names[0]));
    return;
  }
  charge(node.names[0].size());
  space.space().members[node.names[0]] = std::move(value);
}

std::string Evaluator::capture(const Node& body) {
  std::string text;
  std::string* outer = std::exchange(out_, &text);
  execute(body);
  out_ = outer;
  return text;
}

void Evaluator::execute_set_block(const Node& node) {
  scope_ = push_scope(scope_);
  Value value(capture(*node.children[0]));
  pop_scope();
  if (!failed() && node.children[1] != nullptr) value = evaluate_filter(*node.children[1], &value);
  if (!failed()) assign(node.names[0], std::move(value));
}

void Evaluator::execute_filter_block(const Node& node) {
  scope_ = push_scope(scope_);
  const Value input(capture(*node.children[1]));
  pop_scope();
  if (failed()) return;
  const Value value = evaluate_filter(*node.children[0], &input);
  if (!failed()) write(text(value));
}

Evaluator::Flow Evaluator::execute_with(const Node& node) {
  std::vector<Value> values;
  for (size_t i = 1; i < node.children.size(); ++i) values.push_back(evaluate(*node.children[i]));
  if (failed()) return Flow::kNext;
  scope_ = push_scope(scope_);
  for (size_t i = 0; i < values.size(); ++i) assign(node.names[i], std::move(values[i]));
  const Flow flow = execute(*node.children[0]);
  pop_scope();
  return flow;
}

// ---- Macros
void Evaluator::define_macro(const Node& node) {
  assign(node.text, make_macro(*node.children[0], node.text, node.names, &node));
}

Value Evaluator::make_macro(const Node& body, std::string name,
                            const std::vector<std::string>& parameters, const Node* defaults) {
  // Around a scope that is captured all are.
  for (Scope* scope = scope_; scope != nullptr && !scope->captured; scope = scope->parent)
    scope->captured = true;
  auto callable = std::make_shared<Callable>();
  callable->name = name;
  callable->call = [macro = Macro{std::move(name), &body, &parameters, defaults, scope_}](
                       Evaluator& e, Arguments& arguments) {
    return e.call_macro(macro, arguments);
  };
  return Value(std::shared_ptr<const Callable>(std::move(callable)));
}

Value Evaluator::call_macro(const Macro& macro, Arguments& arguments) {
  const std::vector<std::string>& parameters = *macro.parameters;
  if (arguments.positional.size() > parameters.size()) {
    return fail(fmt::format("macro '{}' takes not more than {} argument(s)", shortened(macro.name),
                            parameters.size()));
  }
  // Names are looked for one by one.
  if (!charge(4 * parameters.size() * (1 + arguments.named.size()))) return Value();
  Scope* caller_scope = scope_;
  scope_ = push_scope(macro.scope);
  for (const auto& [name, value] : arguments.named) {
    const bool known = std::find(parameters.begin(), parameters.end(), name) != parameters.end();
    if (!known && name != "caller") {
      fail(fmt::format("macro '{}' takes no keyword argument '{}'", shortened(macro.name),
                       shortened(name)));
    }
    if (name == "caller") assign(name, value);
  }
  for (size_t i = 0; i < parameters.size() && !failed(); ++i) {
    const Value* value = arguments.find(i, parameters[i]);
    const Node* fallback =
        macro.defaults == nullptr ? nullptr : macro.defaults->children[i + 1].get();
    if (value != nullptr) {
      assign(parameters[i], *value);
    } else if (fallback != nullptr) {
      assign(parameters[i], evaluate(*fallback));
    } else {
      assign(parameters[i], Value::undefined(fmt::format("parameter '{}' was not provided",
                                                         shortened(parameters[i]))));
    }
  }
  const int line = line_;
  std::string text = failed() ? std::string() : capture(*macro.body);
  line_ = line;
  pop_scope();
  scope_ = caller_scope;
  return Value(std::move(text));
}

void Evaluator::execute_call_block(const Node& node) {
  const Node& call_node = *node.children[0];
  const Value callee = evaluate(*call_node.children[0]);
  Arguments arguments = evaluate_arguments(call_node, 1);
  if (failed()) return;
  arguments.named.emplace_back("caller",
                               make_macro(*node.children[1], "caller", node.names, nullptr));
  const Value value = call(callee, arguments);
  if (!failed()) write(text(value));
}

}  // namespace kvant::chat
