// Lexer of chat templates: Jinja with trim_blocks and lstrip_blocks, as Transformers sets them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/status.h"

namespace kvant::chat {

enum class TokenKind : uint8_t {
  kText,  // between tags, white space control applied
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,  // unescaped
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int line = 0;
};

// The tokens of `source`, the last one kEnd; corrupt with the line where it can't be read.
Result<std::vector<Token>> lex(std::string_view source);

// corrupt "chat template, line N: message".
Status template_error(int line, std::string_view message);

}  // namespace kvant::chat
