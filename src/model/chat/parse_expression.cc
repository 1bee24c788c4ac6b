#include <charconv>

#include "model/chat/parser_base.h"

namespace kvant::chat {

Result<NodePtr> ExpressionParser::binary(NodeKind kind, std::string op, NodePtr left,
                                         NodePtr right) {
  NodePtr node = make(kind, std::move(op));
  adopt(*node, std::move(left));
  adopt(*node, std::move(right));
  KVANT_TRY(check_depth(*node));
  return node;
}

Result<NodePtr> ExpressionParser::parse_expression() {
  const Level level(depth_);
  if (depth_ > kMaxParseDepth) return too_deep();
  KVANT_ASSIGN(NodePtr node, parse_or());
  while (skip_name("if")) {
    NodePtr conditional = make(NodeKind::kConditional);
    KVANT_ASSIGN(NodePtr condition, parse_or());
    NodePtr other;
    if (skip_name("else")) {
      KVANT_ASSIGN(other, parse_expression());
    }
    adopt(*conditional, std::move(node));
    adopt(*conditional, std::move(condition));
    adopt(*conditional, std::move(other));
    KVANT_TRY(check_depth(*conditional));
    node = std::move(conditional);
  }
  return node;
}

Result<NodePtr> ExpressionParser::parse_tuple() { return parse_tuple_of(Condition::kAllowed); }
Result<NodePtr> ExpressionParser::parse_tuple_without_condition() {
  return parse_tuple_of(Condition::kNone);
}

Result<NodePtr> ExpressionParser::parse_tuple_of(Condition condition) {
  const auto parse_item = [&] {
    return condition == Condition::kAllowed ? parse_expression() : parse_or();
  };
  KVANT_ASSIGN(NodePtr first, parse_item());
  if (!is_op(",")) return first;
  NodePtr tuple = make(NodeKind::kTuple);
  adopt(*tuple, std::move(first));
  while (skip_op(",")) {
    if (is(TokenKind::kVariableEnd) || is(TokenKind::kBlockEnd) || is_op(")")) break;
    KVANT_ASSIGN(NodePtr item, parse_item());
    adopt(*tuple, std::move(item));
  }
  KVANT_TRY(check_depth(*tuple));
  return tuple;
}

Result<NodePtr> ExpressionParser::parse_or() {
  KVANT_ASSIGN(NodePtr node, parse_and());
  while (skip_name("or")) {
    KVANT_ASSIGN(NodePtr right, parse_and());
    KVANT_ASSIGN(node, binary(NodeKind::kOr, "or", std::move(node), std::move(right)));
  }
  return node;
}

Result<NodePtr> ExpressionParser::parse_and() {
  KVANT_ASSIGN(NodePtr node, parse_not());
  while (skip_name("and")) {
    KVANT_ASSIGN(NodePtr right, parse_not());
    KVANT_ASSIGN(node, binary(NodeKind::kAnd, "and", std::move(node), std::move(right)));
  }
  return node;
}

Result<NodePtr> ExpressionParser::parse_not() {
  if (!is_name("not")) return parse_compare();
  const Level level(depth_);
  if (depth_ > kMaxParseDepth) return too_deep();
  NodePtr node = make(NodeKind::kUnary, "not");
  skip();
  KVANT_ASSIGN(NodePtr operand, parse_not());
  adopt(*node, std::move(operand));
  return node;
}

Result<NodePtr> ExpressionParser::parse_compare() {
  KVANT_ASSIGN(NodePtr first, parse_sum());
  NodePtr node = make(NodeKind::kCompare);
  for (;;) {
    std::string op;
    if (is(TokenKind::kOperator)) {
      for (const std::string_view known : {"==", "!=", "<", "<=", ">", ">="}) {
        if (token().text == known) op = known;
      }
    } else if (is_name("in")) {
      op = "in";
    } else if (is_name("not") && ahead().kind == TokenKind::kName && ahead().text == "in") {
      op = "not in";
      skip();
    }
    if (op.empty()) break;
    skip();
    if (node->children.empty()) adopt(*node, std::move(first));
    KVANT_ASSIGN(NodePtr operand, parse_sum());
    adopt(*node, std::move(operand));
    node->names.push_back(std::move(op));
  }
  if (node->children.empty()) return first;
  KVANT_TRY(check_depth(*node));
  return node;
}

Result<NodePtr> ExpressionParser::parse_left_chain(
    Result<NodePtr> (ExpressionParser::*operand)(),
    std::initializer_list<std::string_view> operators) {
  KVANT_ASSIGN(NodePtr node, (this->*operand)());
  for (;;) {
    std::string op;
    for (const std::string_view known : operators) {
      if (is_op(known)) op = known;
    }
    if (op.empty()) return node;
    skip();
    KVANT_ASSIGN(NodePtr right, (this->*operand)());
    KVANT_ASSIGN(node, binary(NodeKind::kBinary, std::move(op), std::move(node), std::move(right)));
  }
}

Result<NodePtr> ExpressionParser::parse_sum() {
  return parse_left_chain(&ExpressionParser::parse_concat, {"+", "-"});
}
Result<NodePtr> ExpressionParser::parse_product() {
  return parse_left_chain(&ExpressionParser::parse_power, {"*", "/", "//", "%"});
}
Result<NodePtr> ExpressionParser::parse_power() {
  return parse_left_chain(&ExpressionParser::parse_unary, {"**"});
}

Result<NodePtr> ExpressionParser::parse_concat() {
  KVANT_ASSIGN(NodePtr first, parse_product());
  if (!is_op("~")) return first;
  NodePtr node = make(NodeKind::kConcat);
  adopt(*node, std::move(first));
  while (skip_op("~")) {
    KVANT_ASSIGN(NodePtr part, parse_product());
    adopt(*node, std::move(part));
  }
  KVANT_TRY(check_depth(*node));
  return node;
}

// Filters and tests bind to the signed value, not to what the sign stands before: -x|abs is
// (-x)|abs.
Result<NodePtr> ExpressionParser::parse_unary() {
  KVANT_ASSIGN(NodePtr node, parse_sign());
  return parse_filters(std::move(node));
}

Result<NodePtr> ExpressionParser::parse_sign() {
  const Level level(depth_);
  if (depth_ > kMaxParseDepth) return too_deep();
  if (is_op("-") || is_op("+")) {
    NodePtr node = make(NodeKind::kUnary, token().text);
    skip();
    KVANT_ASSIGN(NodePtr operand, parse_sign());
    adopt(*node, std::move(operand));
    return node;
  }
  KVANT_ASSIGN(NodePtr node, parse_primary());
  return parse_postfix(std::move(node));
}

Result<NodePtr> ExpressionParser::parse_primary() {
  switch (token().kind) {
    case TokenKind::kName:
      return parse_named_constant();
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return parse_number();
    case TokenKind::kString: {
      NodePtr node = make(NodeKind::kConstant);
      std::string text;
      while (is(TokenKind::kString)) {  // strings side by side are one
        text += token().text;
        skip();
      }
      node->value = Value(std::move(text));
      return node;
    }
    default:
      break;
  }
  if (skip_op("(")) return parse_parentheses();
  if (skip_op("[")) return parse_list();
  if (skip_op("{")) return parse_dict();
  return unexpected("an expression");
}

Result<NodePtr> ExpressionParser::parse_named_constant() {
  const std::string name = token().text;
  NodePtr node = make(NodeKind::kConstant);
  if (name == "true" || name == "True") {
    node->value = Value(true);
  } else if (name == "false" || name == "False") {
    node->value = Value(false);
  } else if (name == "none" || name == "None") {
    node->value = Value(None{});
  } else {
    node = make(NodeKind::kName, name);
  }
  skip();
  return node;
}

Result<NodePtr> ExpressionParser::parse_number() {
  NodePtr node = make(NodeKind::kConstant);
  const std::string& text = token().text;
  if (is(TokenKind::kFloat)) {
    double value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    node->value = Value(value);
  } else {
    int64_t value = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) {
      return error(fmt::format("{} is too large; integers have 64 bits", text));
    }
    node->value = Value(value);
  }
  skip();
  return node;
}

Result<NodePtr> ExpressionParser::parse_parentheses() {
  if (is_op(")")) {
    NodePtr empty = make(NodeKind::kTuple);
    skip();
    return empty;
  }
  KVANT_ASSIGN(NodePtr node, parse_tuple());
  KVANT_TRY(expect_op(")"));
  return node;
}

Result<NodePtr> ExpressionParser::parse_list() {
  NodePtr node = make(NodeKind::kList);
  while (!skip_op("]")) {
    if (!node->children.empty()) {
      KVANT_TRY(expect_op(","));
      if (skip_op("]")) break;
    }
    KVANT_ASSIGN(NodePtr item, parse_expression());
    adopt(*node, std::move(item));
  }
  return node;
}

Result<NodePtr> ExpressionParser::parse_dict() {
  NodePtr node = make(NodeKind::kDict);
  while (!skip_op("}")) {
    if (!node->children.empty()) {
      KVANT_TRY(expect_op(","));
      if (skip_op("}")) break;
    }
    KVANT_ASSIGN(NodePtr key, parse_expression());
    KVANT_TRY(expect_op(":"));
    KVANT_ASSIGN(NodePtr value, parse_expression());
    adopt(*node, std::move(key));
    adopt(*node, std::move(value));
  }
  return node;
}

Result<NodePtr> ExpressionParser::parse_postfix(NodePtr node) {
  for (;;) {
    if (skip_op(".")) {
      KVANT_ASSIGN(node, parse_attribute(std::move(node)));
    } else if (skip_op("[")) {
      KVANT_ASSIGN(node, parse_subscript(std::move(node)));
    } else if (skip_op("(")) {
      KVANT_ASSIGN(node, parse_call(std::move(node)));
    } else {
      return node;
    }
    KVANT_TRY(check_depth(*node));
  }
}

Result<NodePtr> ExpressionParser::parse_attribute(NodePtr object) {
  if (is(TokenKind::kInteger)) {  // a.0 is a[0]
    NodePtr node = make(NodeKind::kIndex);
    KVANT_ASSIGN(NodePtr index, parse_number());
    adopt(*node, std::move(object));
    adopt(*node, std::move(index));
    return node;
  }
  NodePtr node = make(NodeKind::kAttribute);
  KVANT_ASSIGN(node->text, expect_name());
  adopt(*node, std::move(object));
  return node;
}

Result<NodePtr> ExpressionParser::parse_subscript(NodePtr object) {
  NodePtr parts[3];
  size_t num_colons = 0;
  while (!is_op("]")) {
    if (skip_op(":")) {
      if (++num_colons > 2) return error("a slice has at most two colons");
      continue;
    }
    if (parts[num_colons] != nullptr) return unexpected("']'");
    KVANT_ASSIGN(parts[num_colons], parse_tuple());
  }
  NodePtr node = make(num_colons == 0 ? NodeKind::kIndex : NodeKind::kSlice);
  skip();
  if (num_colons == 0 && parts[0] == nullptr) return error("found '[]'; wanted an index");
  adopt(*node, std::move(object));
  adopt(*node, std::move(parts[0]));
  if (num_colons > 0) {
    adopt(*node, std::move(parts[1]));
    adopt(*node, std::move(parts[2]));
  }
  return node;
}

Result<NodePtr> ExpressionParser::parse_call(NodePtr callee) {
  NodePtr node = make(NodeKind::kCall);
  adopt(*node, std::move(callee));
  KVANT_TRY(parse_arguments(*node));
  return node;
}

Status ExpressionParser::parse_arguments(Node& out) {
  bool first = true;
  while (!skip_op(")")) {
    if (!first) {
      KVANT_TRY(expect_op(","));
      if (skip_op(")")) break;
    }
    first = false;
    if (is_op("*") || is_op("**")) return error("arguments by * or ** are not supported");
    if (is(TokenKind::kName) && ahead().kind == TokenKind::kOperator && ahead().text == "=") {
      std::string name = token().text;
      skip();
      skip();
      KVANT_ASSIGN(NodePtr value, parse_expression());
      out.depth = std::max(out.depth, value->depth + 1);
      out.named.emplace_back(std::move(name), std::move(value));
      continue;
    }
    if (!out.named.empty()) return error("a positional argument follows a named one");
    KVANT_ASSIGN(NodePtr value, parse_expression());
    adopt(out, std::move(value));
  }
  return {};
}

Result<NodePtr> ExpressionParser::parse_filters(NodePtr node) {
  for (;;) {
    if (skip_op("|")) {
      KVANT_ASSIGN(node, parse_filter(std::move(node)));
    } else if (node != nullptr && skip_name("is")) {
      KVANT_ASSIGN(node, parse_test(std::move(node)));
    } else if (node != nullptr && skip_op("(")) {
      KVANT_ASSIGN(node, parse_call(std::move(node)));
    } else {
      return node;
    }
    KVANT_TRY(check_depth(*node));
  }
}

Result<NodePtr> ExpressionParser::parse_filter(NodePtr operand) {
  NodePtr node = make(NodeKind::kFilter);
  KVANT_ASSIGN(node->text, expect_name());
  while (skip_op(".")) {
    KVANT_ASSIGN(const std::string part, expect_name());
    node->text += "." + part;
  }
  adopt(*node, std::move(operand));
  if (skip_op("(")) KVANT_TRY(parse_arguments(*node));
  return node;
}

Result<NodePtr> ExpressionParser::parse_test(NodePtr operand) {
  NodePtr node = make(NodeKind::kTest);
  node->negated = skip_name("not");
  KVANT_ASSIGN(node->text, expect_name());
  adopt(*node, std::move(operand));
  if (skip_op("(")) {
    KVANT_TRY(parse_arguments(*node));
    return node;
  }
  // One argument may stand without parentheses: x is divisibleby 3.
  const bool starts_value =
      is(TokenKind::kString) || is(TokenKind::kInteger) || is(TokenKind::kFloat) || is_op("[") ||
      is_op("{") ||
      (is(TokenKind::kName) && !is_name("else") && !is_name("or") && !is_name("and") &&
       !is_name("is") && !is_name("if") && !is_name("in") && !is_name("not"));
  if (starts_value) {
    KVANT_ASSIGN(NodePtr value, parse_primary());
    KVANT_ASSIGN(value, parse_postfix(std::move(value)));
    adopt(*node, std::move(value));
  }
  return node;
}

}  // namespace kvant::chat
