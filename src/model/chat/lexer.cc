#include "model/chat/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "model/chat/limits.h"
#include "model/chat/text.h"
#include "model/tokenizer/unicode.h"

namespace kvant::chat {
namespace {

constexpr std::string_view kSpaces = " \t\n\r\v\f";

// Longest first, so that the first that fits is right.
constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                           "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                           ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Line ends as "\n", and one at the very end left out: Jinja's defaults.
std::string normalize_lines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_lines(source)), rest_(source_) {}

  Result<std::vector<Token>> run() {
    while (!rest_.empty()) KVANT_TRY(next_tag());
    push(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void push(TokenKind kind, std::string_view text) {
    tokens_.push_back({kind, std::string(text), line_});
  }

  // Moves over `count` bytes, counting lines, and remembers whether they end a line.
  std::string_view take(size_t count) {
    const std::string_view taken = rest_.substr(0, count);
    line_ += static_cast<int>(std::count(taken.begin(), taken.end(), '\n'));
    if (!taken.empty()) line_start_ = taken.back() == '\n';
    rest_.remove_prefix(taken.size());
    return taken;
  }
  void take_spaces() { take(std::min(rest_.find_first_not_of(kSpaces), rest_.size())); }

  // Text up to the next tag, then the tag.
  Status next_tag() {
    size_t at = 0;
    do {
      at = rest_.find('{', at);
      if (at == std::string_view::npos || at + 1 >= rest_.size()) {
        emit_text(take(rest_.size()));
        return {};
      }
    } while (rest_[at + 1] != '%' && rest_[at + 1] != '{' && rest_[at + 1] != '#' && ++at);
    const char type = rest_[at + 1];
    const char sign = at + 2 < rest_.size() ? rest_[at + 2] : ' ';
    const bool line_start = line_start_;  // of the text, before it is taken
    std::string_view text = take(at);
    if (sign == '-') {
      text = text.substr(0, text.find_last_not_of(kSpaces) + 1);
    } else if (sign != '+' && type != '{') {
      text = without_indent(text, line_start);
    }
    emit_text(text);
    take(sign == '-' || sign == '+' ? 3 : 2);
    if (type == '#') return take_comment();
    if (type == '{')
      return take_expression(TokenKind::kVariableBegin, TokenKind::kVariableEnd, "}}");
    if (take_raw_begin()) return take_raw();
    return take_expression(TokenKind::kBlockBegin, TokenKind::kBlockEnd, "%}");
  }

  void emit_text(std::string_view text) {
    if (!text.empty()) push(TokenKind::kText, text);
  }

  // lstrip_blocks: blanks between the line's start and a block tag are no text.
  static std::string_view without_indent(std::string_view text, bool line_start) {
    const size_t begin = text.rfind('\n') + 1;  // 0 where there is no line end
    if (begin == 0 && !line_start) return text;
    return text.find_first_not_of(kSpaces, begin) == std::string_view::npos ? text.substr(0, begin)
                                                                            : text;
  }

  // If a tag ends here: takes it, and the white space that it eats. Blocks eat one line end
  // (trim_blocks).
  bool take_end(std::string_view end) {
    const bool block = end != "}}";
    if (rest_.starts_with(end)) {
      take(end.size());
      if (block && rest_.starts_with('\n')) take(1);
      return true;
    }
    if (!rest_.substr(std::min<size_t>(1, rest_.size())).starts_with(end)) return false;
    if (rest_[0] == '-') {
      take(1 + end.size());
      take_spaces();
      return true;
    }
    if (rest_[0] != '+' || !block) return false;
    take(1 + end.size());
    return true;
  }

  Status take_comment() {
    const int line = line_;
    while (!rest_.empty()) {
      if (take_end("#}")) return {};
      take(1);
    }
    return template_error(line, "a comment has no end");
  }

  // "raw %}" after the tag's start.
  bool take_raw_begin() {
    std::string_view ahead = rest_;
    const auto skip_spaces = [&] {
      ahead.remove_prefix(std::min(ahead.find_first_not_of(kSpaces), ahead.size()));
    };
    skip_spaces();
    if (!ahead.starts_with("raw")) return false;
    ahead.remove_prefix(3);
    skip_spaces();
    const bool dash = ahead.starts_with("-%}");
    if (!dash && !ahead.starts_with("%}")) return false;
    take(rest_.size() - ahead.size() + (dash ? 3 : 2));
    if (dash) take_spaces();
    return true;
  }

  Status take_raw() {
    const int line = line_;
    for (size_t at = rest_.find("{%"); at != std::string_view::npos;
         at = rest_.find("{%", at + 2)) {
      size_t name = at + 2;
      const bool dash = rest_.substr(name).starts_with('-'),
                 plus = rest_.substr(name).starts_with('+');
      if (dash || plus) ++name;
      name = std::min(rest_.find_first_not_of(kSpaces, name), rest_.size());
      if (!rest_.substr(name).starts_with("endraw")) continue;
      const bool line_start = line_start_;
      std::string_view text = rest_.substr(0, at);
      if (dash) text = text.substr(0, text.find_last_not_of(kSpaces) + 1);
      if (!dash && !plus) text = without_indent(text, line_start);
      emit_text(text);
      take(name + 6);
      take_spaces();
      return take_end("%}") ? Status() : template_error(line_, "endraw is not closed by %}");
    }
    return template_error(line, "raw has no endraw");
  }

  Status take_expression(TokenKind begin, TokenKind end, std::string_view mark) {
    push(begin, "");
    const int line = line_;
    int open = 0;  // brackets: "}}" inside of them is no end
    for (;;) {
      take_spaces();
      if (rest_.empty()) return template_error(line, fmt::format("a tag has no {}", mark));
      if (open == 0 && take_end(mark)) {
        push(end, "");
        return {};
      }
      KVANT_TRY(take_token(open));
    }
  }

  Status take_token(int& open) {
    const char c = rest_[0];
    if (is_name_start(c)) {
      size_t size = 1;
      while (size < rest_.size() && (is_name_start(rest_[size]) || is_digit(rest_[size]))) ++size;
      push(TokenKind::kName, take(size));
      return {};
    }
    if (is_digit(c)) return take_number();
    if (c == '"' || c == '\'') return take_string();
    for (const std::string_view op : kOperators) {
      if (!rest_.starts_with(op)) continue;
      if (op == "(" || op == "[" || op == "{") ++open;
      if (op == ")" || op == "]" || op == "}") {
        if (open == 0) return template_error(line_, fmt::format("unexpected '{}'", op));
        --open;
      }
      push(TokenKind::kOperator, take(op.size()));
      return {};
    }
    return template_error(
        line_, fmt::format("unexpected character '{}'",
                           rest_.substr(0, tokenizer::utf8_length(static_cast<unsigned char>(c)))));
  }

  Status take_number() {
    size_t size = 0;
    bool is_float = false;
    const auto digits = [&] {
      while (size < rest_.size() && (is_digit(rest_[size]) || rest_[size] == '_')) ++size;
    };
    digits();
    if (size + 1 < rest_.size() && rest_[size] == '.' && is_digit(rest_[size + 1])) {
      is_float = true;
      ++size;
      digits();
    }
    if (size < rest_.size() && (rest_[size] == 'e' || rest_[size] == 'E')) {
      size_t exponent = size + 1;
      if (exponent < rest_.size() && (rest_[exponent] == '+' || rest_[exponent] == '-')) ++exponent;
      if (exponent < rest_.size() && is_digit(rest_[exponent])) {
        is_float = true;
        size = exponent;
        digits();
      }
    }
    std::string text(take(size));
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    push(is_float ? TokenKind::kFloat : TokenKind::kInteger, text);
    return {};
  }

  Status take_string() {
    const int line = line_;
    const char quote = rest_[0];
    std::string out;
    size_t i = 1;
    for (; i < rest_.size() && rest_[i] != quote; ++i) {
      if (rest_[i] != '\\') {
        out += rest_[i];
      } else if (++i < rest_.size()) {
        i += unescape(rest_.substr(i), out);
      }
    }
    if (i >= rest_.size()) return template_error(line, "a string has no end");
    take(i + 1);
    push(TokenKind::kString, out);
    return {};
  }

  // Python's escapes, `text` starting behind the backslash. Returns the bytes used beyond the
  // first.
  static size_t unescape(std::string_view text, std::string& out) {
    static constexpr std::string_view kLetters("ntrabfv0\\'\"", 11);
    static constexpr std::string_view kMeanings("\n\t\r\a\b\f\v\0\\'\"", 11);
    struct Hex {
      char letter;
      size_t digits;
    };
    for (const Hex& hex : {Hex{'x', 2}, Hex{'u', 4}, Hex{'U', 8}}) {
      uint32_t c = 0;
      if (text[0] != hex.letter || text.size() <= hex.digits) continue;
      const char* end = text.data() + 1 + hex.digits;
      if (std::from_chars(text.data() + 1, end, c, 16).ptr != end || c > 0x10ffff ||
          (c >= 0xd800 && c < 0xe000))
        break;
      tokenizer::append_utf8(c, out);
      return hex.digits;
    }
    const size_t at = kLetters.find(text[0]);
    if (text[0] == '\n') return 0;  // a line that goes on
    if (at == std::string_view::npos) {
      out += '\\';
      out += text[0];
    } else {
      out += kMeanings[at];
    }
    return 0;
  }

  std::string source_;
  std::string_view rest_;
  std::vector<Token> tokens_;
  int line_ = 1;
  bool line_start_ = true;
};

}  // namespace

Status template_error(int line, std::string_view message) {
  return corrupt(
      fmt::format("chat template, line {}: {}", line, shortened(message, kMaxMessageBytes)));
}

Result<std::vector<Token>> lex(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return corrupt(fmt::format("chat template: {} bytes; at most {} are read", source.size(),
                               kMaxTemplateBytes));
  }
  return Lexer(source).run();
}

}  // namespace kvant::chat
