#include "model/chat/parser.h"
#include "model/chat/parser_base.h"

namespace kvant::chat {
namespace {

class Parser final : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Result<NodePtr> parse_template() {
    KVANT_ASSIGN(NodePtr block, parse_body({}));
    if (!is(TokenKind::kEnd)) return error(fmt::format("unexpected tag '{}'", ahead().text));
    return block;
  }

 private:
  struct Statement {
    std::string_view name;
    Result<NodePtr> (Parser::*parse)();
  };

  // Statements up to a tag whose name is one of `ends` (or any tag that no statement begins with);
  // the tag stays.
  Result<NodePtr> parse_body(std::initializer_list<std::string_view> ends) {
    const Level level(depth_);
    if (depth_ > kMaxParseDepth) return too_deep();
    NodePtr block = make(NodeKind::kBlock);
    while (!is(TokenKind::kEnd)) {
      if (is(TokenKind::kBlockBegin) &&
          std::find(ends.begin(), ends.end(), ahead().text) != ends.end())
        break;
      if (is(TokenKind::kText)) {
        adopt(*block, make(NodeKind::kText, token().text));
        skip();
        continue;
      }
      KVANT_ASSIGN(NodePtr statement, is(TokenKind::kVariableBegin) ? parse_output() : parse_tag());
      if (statement == nullptr) break;
      adopt(*block, std::move(statement));
    }
    KVANT_TRY(check_depth(*block));
    return block;
  }

  Result<NodePtr> parse_output() {
    NodePtr node = make(NodeKind::kOutput);
    skip();
    KVANT_ASSIGN(NodePtr value, parse_tuple());
    adopt(*node, std::move(value));
    if (!is(TokenKind::kVariableEnd)) return unexpected("'}}'");
    skip();
    return node;
  }

  // Null, and nothing skipped, for the name of no statement: it may be the end of an outer one.
  Result<NodePtr> parse_tag();

  Status end_block() {
    if (!is(TokenKind::kBlockEnd)) return unexpected("'%}'");
    skip();
    return {};
  }
  // "{% name %}"
  Status expect_tag(std::string_view name) {
    if (!is(TokenKind::kBlockBegin)) return unexpected(fmt::format("{{% {} %}}", name));
    skip();
    if (!skip_name(name)) return unexpected(fmt::format("'{}'", name));
    return end_block();
  }

  Result<NodePtr> parse_if() {
    NodePtr node = make(NodeKind::kIf);
    for (;;) {  // at the condition of `if` or `elif`
      KVANT_ASSIGN(NodePtr condition, parse_tuple());
      adopt(*node, std::move(condition));
      KVANT_TRY(end_block());
      KVANT_ASSIGN(NodePtr body, parse_body({"elif", "else", "endif"}));
      adopt(*node, std::move(body));
      if (!is(TokenKind::kBlockBegin) || ahead().text != "elif") break;
      skip();
      skip();
    }
    if (is(TokenKind::kBlockBegin) && ahead().text == "else") {
      KVANT_TRY(expect_tag("else"));
      KVANT_ASSIGN(NodePtr body, parse_body({"endif"}));
      adopt(*node, std::move(body));
    }
    KVANT_TRY(expect_tag("endif"));
    return node;
  }

  // "a" or "a, b", with or without parentheses.
  Status parse_targets(std::vector<std::string>& names) {
    const bool parentheses = skip_op("(");
    do {
      if (!names.empty() && !is(TokenKind::kName)) break;
      KVANT_ASSIGN(std::string name, expect_name());
      names.push_back(std::move(name));
    } while (skip_op(","));
    return parentheses ? expect_op(")") : Status();
  }

  Result<NodePtr> parse_for() {
    NodePtr node = make(NodeKind::kFor);
    KVANT_TRY(parse_targets(node->names));
    if (!skip_name("in")) return unexpected("'in'");
    KVANT_ASSIGN(NodePtr iterable, parse_tuple_without_condition());
    NodePtr filter, other;
    if (skip_name("if")) {
      KVANT_ASSIGN(filter, parse_expression());
    }
    if (is_name("recursive")) return error("recursive loops are not supported");
    KVANT_TRY(end_block());
    KVANT_ASSIGN(NodePtr body, parse_body({"else", "endfor"}));
    if (is(TokenKind::kBlockBegin) && ahead().text == "else") {
      KVANT_TRY(expect_tag("else"));
      KVANT_ASSIGN(other, parse_body({"endfor"}));
    }
    KVANT_TRY(expect_tag("endfor"));
    adopt(*node, std::move(iterable));
    adopt(*node, std::move(filter));
    adopt(*node, std::move(body));
    adopt(*node, std::move(other));
    return node;
  }

  Result<NodePtr> parse_set() {
    NodePtr node = make(NodeKind::kSet);
    if (is(TokenKind::kName) && ahead().kind == TokenKind::kOperator && ahead().text == ".") {
      node->text = token().text;
      skip();
      skip();
      KVANT_ASSIGN(std::string name, expect_name());
      node->names.push_back(std::move(name));
    } else {
      KVANT_TRY(parse_targets(node->names));
    }
    if (skip_op("=")) {
      KVANT_ASSIGN(NodePtr value, parse_tuple());
      adopt(*node, std::move(value));
      KVANT_TRY(end_block());
      return node;
    }
    node->kind = NodeKind::kSetBlock;
    if (!node->text.empty() || node->names.size() != 1) return unexpected("'='");
    KVANT_ASSIGN(NodePtr filters, parse_filters(nullptr));
    KVANT_TRY(end_block());
    KVANT_ASSIGN(NodePtr body, parse_body({"endset"}));
    KVANT_TRY(expect_tag("endset"));
    adopt(*node, std::move(body));
    adopt(*node, std::move(filters));
    return node;
  }

  // "(a, b=1)": parameters; a default's value becomes a child, null for none.
  Status parse_parameters(Node& node) {
    KVANT_TRY(expect_op("("));
    while (!skip_op(")")) {
      if (!node.names.empty()) KVANT_TRY(expect_op(","));
      KVANT_ASSIGN(std::string name, expect_name());
      node.names.push_back(std::move(name));
      NodePtr value;
      if (skip_op("=")) {
        KVANT_ASSIGN(value, parse_expression());
      }
      adopt(node, std::move(value));
    }
    return {};
  }

  Result<NodePtr> parse_macro() {
    NodePtr node = make(NodeKind::kMacro);
    KVANT_ASSIGN(node->text, expect_name());
    node->children.push_back(nullptr);  // the body's place
    KVANT_TRY(parse_parameters(*node));
    KVANT_TRY(end_block());
    KVANT_ASSIGN(NodePtr body, parse_body({"endmacro"}));
    KVANT_TRY(expect_tag("endmacro"));
    node->depth = std::max(node->depth, body->depth + 1);
    node->children[0] = std::move(body);
    return node;
  }

  Result<NodePtr> parse_call_block() {
    NodePtr node = make(NodeKind::kCallBlock);
    if (is_op("(")) {
      Node parameters;
      KVANT_TRY(parse_parameters(parameters));
      node->names = std::move(parameters.names);
    }
    KVANT_ASSIGN(NodePtr call, parse_expression());
    if (call->kind != NodeKind::kCall) return error("a call block needs a call");
    adopt(*node, std::move(call));
    KVANT_TRY(end_block());
    KVANT_ASSIGN(NodePtr body, parse_body({"endcall"}));
    KVANT_TRY(expect_tag("endcall"));
    adopt(*node, std::move(body));
    return node;
  }

  Result<NodePtr> parse_filter_block() {
    NodePtr node = make(NodeKind::kFilterBlock);
    NodePtr filters = make(NodeKind::kFilter);  // the first filter has no bar before it
    KVANT_ASSIGN(filters->text, expect_name());
    adopt(*filters, nullptr);
    if (skip_op("(")) KVANT_TRY(parse_arguments(*filters));
    KVANT_ASSIGN(filters, parse_filters(std::move(filters)));
    KVANT_TRY(end_block());
    KVANT_ASSIGN(NodePtr body, parse_body({"endfilter"}));
    KVANT_TRY(expect_tag("endfilter"));
    adopt(*node, std::move(filters));
    adopt(*node, std::move(body));
    return node;
  }

  Result<NodePtr> parse_with() {
    NodePtr node = make(NodeKind::kWith);
    node->children.push_back(nullptr);
    while (!is(TokenKind::kBlockEnd)) {
      if (!node->names.empty()) KVANT_TRY(expect_op(","));
      KVANT_ASSIGN(std::string name, expect_name());
      KVANT_TRY(expect_op("="));
      KVANT_ASSIGN(NodePtr value, parse_expression());
      node->names.push_back(std::move(name));
      adopt(*node, std::move(value));
    }
    KVANT_TRY(end_block());
    KVANT_ASSIGN(NodePtr body, parse_body({"endwith"}));
    KVANT_TRY(expect_tag("endwith"));
    node->depth = std::max(node->depth, body->depth + 1);
    node->children[0] = std::move(body);
    return node;
  }

  // {% generation %} marks what the assistant wrote; it changes no text.
  Result<NodePtr> parse_generation() {
    KVANT_TRY(end_block());
    KVANT_ASSIGN(NodePtr body, parse_body({"endgeneration"}));
    KVANT_TRY(expect_tag("endgeneration"));
    NodePtr scope = make(NodeKind::kWith);
    adopt(*scope, std::move(body));
    return scope;
  }

  Result<NodePtr> parse_break() { return parse_jump_of(NodeKind::kBreak); }
  Result<NodePtr> parse_continue() { return parse_jump_of(NodeKind::kContinue); }
  Result<NodePtr> parse_jump_of(NodeKind kind) {
    NodePtr node = make(kind);
    KVANT_TRY(end_block());
    return node;
  }
};

Result<NodePtr> Parser::parse_tag() {
  static constexpr Statement kStatements[] = {
      {"if", &Parser::parse_if},           {"for", &Parser::parse_for},
      {"set", &Parser::parse_set},         {"macro", &Parser::parse_macro},
      {"call", &Parser::parse_call_block}, {"filter", &Parser::parse_filter_block},
      {"with", &Parser::parse_with},       {"generation", &Parser::parse_generation},
      {"break", &Parser::parse_break},     {"continue", &Parser::parse_continue},
  };
  for (const Statement& statement : kStatements) {
    if (ahead().kind != TokenKind::kName || ahead().text != statement.name) continue;
    skip();
    skip();
    return (this->*statement.parse)();
  }
  if (ahead().text.starts_with("end") || ahead().text == "else" || ahead().text == "elif")
    return NodePtr();
  skip();
  return error(fmt::format("tag '{}' is not supported", token().text));
}

}  // namespace

Result<NodePtr> parse(std::string_view source) {
  KVANT_ASSIGN(std::vector<Token> tokens, lex(source));
  return Parser(std::move(tokens)).parse_template();
}

}  // namespace kvant::chat
