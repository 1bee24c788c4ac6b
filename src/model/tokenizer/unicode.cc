#include "model/tokenizer/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

namespace kvant::tokenizer {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

// Allowed range of the second byte, by lead byte: table 3-7 of the Unicode standard.
struct SecondByte {
  unsigned char low, high;
};
SecondByte second_byte(unsigned char lead) {
  switch (lead) {
    case 0xe0:
      return {0xa0, 0xbf};
    case 0xed:
      return {0x80, 0x9f};
    case 0xf0:
      return {0x90, 0xbf};
    case 0xf4:
      return {0x80, 0x8f};
    default:
      return {0x80, 0xbf};
  }
}

bool all_ascii(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  }
  return true;
}

template <typename Keep>
std::string map_chars(std::string_view text, const Keep& map) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) map(next_char(text, pos), out);
  return out;
}

}  // namespace

char32_t next_char(std::string_view text, size_t& pos) {
  const auto at = [&](size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[i]));
  };
  const char32_t lead = at(pos);
  const size_t length = utf8_length(static_cast<unsigned char>(lead));
  if (length == 1 || pos + length > text.size()) {
    ++pos;
    return lead;
  }
  char32_t c = lead & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) c = (c << 6) | (at(pos + i) & 0x3f);
  pos += length;
  return c;
}

void append_utf8(char32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xc0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xe0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3f));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  }
}

Utf8Step utf8_step(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {Utf8Unit::kCharacter, 1};
  if (lead < 0xc2 || lead > 0xf4) return {Utf8Unit::kInvalid, 1};
  const size_t length = utf8_length(lead);
  SecondByte range = second_byte(lead);
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Utf8Unit::kUnfinished, i};
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < range.low || byte > range.high) return {Utf8Unit::kInvalid, i};
    range = {0x80, 0xbf};
  }
  return {Utf8Unit::kCharacter, length};
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    if (step.unit != Utf8Unit::kCharacter) return false;
    text.remove_prefix(step.length);
  }
  return true;
}

std::string repair_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    out += step.unit == Utf8Unit::kCharacter ? text.substr(0, step.length) : kReplacement;
    text.remove_prefix(step.length);
  }
  return out;
}

bool is_whitespace(char32_t c) {
  if (c <= 0x20) return c == 0x20 || (c >= 0x09 && c <= 0x0d);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const utf8proc_category_t k = category(c);
  return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool is_word(char32_t c) {
  if (c < 0x80)
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  if (c == 0x200c || c == 0x200d) return true;
  const utf8proc_category_t k = category(c);
  const bool letter_or_mark =
      k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_ME;  // Lu Ll Lt Lm Lo Mn Mc Me
  return letter_or_mark || k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL ||
         k == UTF8PROC_CATEGORY_PC;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
           (c >= 123 && c <= 126);
  }
  const utf8proc_category_t k = category(c);
  return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;  // Pc Pd Ps Pe Pi Pf Po
}

bool is_printable(char32_t c) {
  if (c < 0x7f) return c >= 0x20;
  const utf8proc_category_t k = category(c);
  return k != UTF8PROC_CATEGORY_CN && k < UTF8PROC_CATEGORY_ZS;  // behind Zs come Zl Zp Cc Cf Cs Co
}

bool is_alphabetic(char32_t c) {
  const utf8proc_category_t k = category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

char32_t to_upper(char32_t c) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
}
char32_t to_lower(char32_t c) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}
bool is_upper(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LL; }

std::string normalize(std::string_view text, NormalForm form) {
  if (all_ascii(text)) return std::string(text);
  static constexpr int kOptions[] = {
      UTF8PROC_STABLE | UTF8PROC_COMPOSE,
      UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
      UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
      UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
  };
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                   static_cast<utf8proc_option_t>(kOptions[static_cast<size_t>(form)]));
  if (size < 0) return std::string(text);  // out of memory; the text is valid UTF-8
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  return std::string(reinterpret_cast<const char*>(mapped), static_cast<size_t>(size));
}

std::string lowercase(std::string_view text) {
  return map_chars(text, [](char32_t c, std::string& out) {
    if (c == 0x130) {  // the one character whose full lower case has two
      out += "i\xcc\x87";
      return;
    }
    append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
  });
}

}  // namespace kvant::tokenizer
