// Unicode for tokenizers: UTF-8 decoding and repair, the character classes that pre-tokenizers
// name, normal forms.
//
// Everything but repair_utf8() and valid_utf8_prefix() REQUIRES valid UTF-8: encode() repairs its
// text once and every later step relies on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvant::tokenizer {

inline constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD
inline constexpr std::string_view kMetaspace =
    "\xe2\x96\x81";  // U+2581, SentencePiece's visible space

// Bytes of the character that starts with `lead`; 1 for a byte that can't start one.
inline size_t utf8_length(unsigned char lead) {
  if (lead < 0xc0) return 1;
  if (lead < 0xe0) return 2;
  return lead < 0xf0 ? 3 : 4;
}

// The character at text[pos], and pos moved behind it.
char32_t next_char(std::string_view text, size_t& pos);
void append_utf8(char32_t c, std::string& out);

// How the bytes at the start of `text` read: a whole character, a prefix that more bytes could
// complete, or a maximal ill-formed subpart (Unicode 3.9, table 3-7), with its length.
enum class Utf8Unit : uint8_t { kCharacter, kUnfinished, kInvalid };
struct Utf8Step {
  Utf8Unit unit;
  size_t length;
};
Utf8Step utf8_step(std::string_view text);

bool is_valid_utf8(std::string_view text);
// Every maximal ill-formed subpart replaced by one U+FFFD, as Python's errors="replace" and Rust's
// from_utf8_lossy do.
std::string repair_utf8(std::string_view text);

bool is_whitespace(char32_t c);   // property White_Space
bool is_numeric(char32_t c);      // Nd, Nl, No
bool is_word(char32_t c);         // \w: letters, marks, decimal numbers, connectors, joiners
bool is_punctuation(char32_t c);  // P*, and ASCII symbols

bool is_printable(
    char32_t c);  // Python's str.isprintable: no control, format, unassigned, or space but U+0020
bool is_alphabetic(char32_t c);  // L*
char32_t to_upper(char32_t c);
char32_t to_lower(char32_t c);
bool is_upper(char32_t c);
bool is_lower(char32_t c);

enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };
std::string normalize(std::string_view text, NormalForm form);
std::string lowercase(std::string_view text);

}  // namespace kvant::tokenizer
