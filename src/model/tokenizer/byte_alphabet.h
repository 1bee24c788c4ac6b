// GPT-2's byte alphabet: the 256 characters that byte-level vocabularies write bytes with.
// Printable Latin-1 bytes stand for themselves, the other 68 are numbered from U+0100 in byte
// order.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvant::tokenizer {

// The character of each byte.
const std::array<char32_t, 256>& byte_alphabet();
// The byte of a character; -1 if it is not in the alphabet.
int byte_of(char32_t c);

std::string spell_bytes(std::string_view bytes);
// False, and `bytes` unspecified, if a character is not in the alphabet.
bool unspell_bytes(std::string_view spelled, std::string& bytes);

// "<0x0A>" is 10; -1 for any other text.
int byte_token_value(std::string_view token);

}  // namespace kvant::tokenizer
