// TokenCursor: the token stream under a parser, and the making of nodes within the depth limit.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "model/chat/ast.h"
#include "model/chat/lexer.h"
#include "model/chat/limits.h"

namespace kvant::chat {

class TokenCursor {
 public:
  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  const Token& token() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void skip() { at_ = std::min(at_ + 1, tokens_.size() - 1); }  // kEnd stays
  bool is(TokenKind kind) const { return token().kind == kind; }
  bool is_op(std::string_view text) const {
    return is(TokenKind::kOperator) && token().text == text;
  }
  bool is_name(std::string_view text) const { return is(TokenKind::kName) && token().text == text; }
  bool skip_op(std::string_view text) {
    if (!is_op(text)) return false;
    skip();
    return true;
  }
  bool skip_name(std::string_view text) {
    if (!is_name(text)) return false;
    skip();
    return true;
  }

  Status error(std::string_view message) const { return template_error(token().line, message); }
  Status unexpected(std::string_view wanted) const {
    static constexpr std::string_view kNames[] = {
        "text",     "{{",         "}}",       "{%",          "%}",     "a name",
        "a string", "an integer", "a number", "an operator", "the end"};
    const std::string seen = token().text.empty()
                                 ? std::string(kNames[static_cast<size_t>(token().kind)])
                                 : fmt::format("'{}'", token().text.substr(0, 40));
    return error(fmt::format("found {}; wanted {}", seen, wanted));
  }
  Status expect_op(std::string_view text) {
    return skip_op(text) ? Status() : unexpected(fmt::format("'{}'", text));
  }
  Result<std::string> expect_name() {
    if (!is(TokenKind::kName)) return unexpected("a name");
    std::string name = token().text;
    skip();
    return name;
  }

  NodePtr make(NodeKind kind, std::string text = {}) const {
    auto node = std::make_unique<Node>();
    node->kind = kind;
    node->line = token().line;
    node->text = std::move(text);
    return node;
  }
  // Adds a child (which may be null). Depth is checked by enter(), or by adopt_checked() where a
  // loop builds depth.
  static void adopt(Node& parent, NodePtr child) {
    if (child != nullptr) parent.depth = std::max(parent.depth, child->depth + 1);
    parent.children.push_back(std::move(child));
  }
  Status check_depth(const Node& node) const {
    return node.depth <= kMaxParseDepth ? Status() : too_deep();
  }
  Status too_deep() const {
    return error(fmt::format("nested more than {} levels deep", kMaxParseDepth));
  }

  // Counts the recursion of the parser itself.
  struct Level {
    explicit Level(int& depth) : depth_(depth) { ++depth_; }
    ~Level() { --depth_; }
    Level(const Level&) = delete;
    int& depth_;
  };
  int depth_ = 0;

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

// Expressions, by Jinja's precedence from loosest to tightest:
//   a if c else b · or · and · not · comparisons, in · + - · ~ · * / // % · ** · unary - + ·
//   postfix . [] () · | is
class ExpressionParser : public TokenCursor {
 public:
  using TokenCursor::TokenCursor;

 protected:
  Result<NodePtr> parse_expression();
  // Expressions separated by commas are a tuple without parentheses.
  Result<NodePtr> parse_tuple();
  // The iterable of a for tag: `if` after it is the loop's filter.
  Result<NodePtr> parse_tuple_without_condition();
  Result<NodePtr> parse_filters(NodePtr operand);
  // "(a, b=c)" of a call, filter or test; the opening parenthesis is skipped.
  Status parse_arguments(Node& out);

 private:
  enum class Condition : uint8_t { kAllowed, kNone };
  Result<NodePtr> parse_tuple_of(Condition condition);
  Result<NodePtr> parse_or();
  Result<NodePtr> parse_and();
  Result<NodePtr> parse_not();
  Result<NodePtr> parse_compare();
  Result<NodePtr> parse_sum();
  Result<NodePtr> parse_concat();
  Result<NodePtr> parse_product();
  Result<NodePtr> parse_power();
  Result<NodePtr> parse_unary();
  Result<NodePtr> parse_sign();
  Result<NodePtr> parse_primary();
  Result<NodePtr> parse_named_constant();
  Result<NodePtr> parse_number();
  Result<NodePtr> parse_parentheses();
  Result<NodePtr> parse_list();
  Result<NodePtr> parse_dict();
  Result<NodePtr> parse_postfix(NodePtr node);
  Result<NodePtr> parse_attribute(NodePtr object);
  Result<NodePtr> parse_subscript(NodePtr object);
  Result<NodePtr> parse_call(NodePtr callee);
  Result<NodePtr> parse_filter(NodePtr operand);
  Result<NodePtr> parse_test(NodePtr operand);
  Result<NodePtr> parse_left_chain(Result<NodePtr> (ExpressionParser::*operand)(),
                                   std::initializer_list<std::string_view> operators);
  Result<NodePtr> binary(NodeKind kind, std::string op, NodePtr left, NodePtr right);
};

}  // namespace kvant::chat
