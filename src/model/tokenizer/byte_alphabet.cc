#include "model/tokenizer/byte_alphabet.h"

#include <charconv>

#include "model/tokenizer/unicode.h"

namespace kvant::tokenizer {
namespace {

constexpr bool is_printable(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

constexpr int kFirstMoved = 0x100;
constexpr int kNumMoved = 68;

std::array<int16_t, kFirstMoved + kNumMoved> make_inverse() {
  std::array<int16_t, kFirstMoved + kNumMoved> inverse;
  inverse.fill(-1);
  for (size_t byte = 0; byte < 256; ++byte)
    inverse[byte_alphabet()[byte]] = static_cast<int16_t>(byte);
  return inverse;
}

}  // namespace

const std::array<char32_t, 256>& byte_alphabet() {
  static const std::array<char32_t, 256> alphabet = [] {
    std::array<char32_t, 256> a{};
    char32_t next = kFirstMoved;
    for (int byte = 0; byte < 256; ++byte) {
      a[static_cast<size_t>(byte)] = is_printable(byte) ? static_cast<char32_t>(byte) : next++;
    }
    return a;
  }();
  return alphabet;
}

int byte_of(char32_t c) {
  static const auto inverse = make_inverse();
  return c < inverse.size() ? inverse[c] : -1;
}

std::string spell_bytes(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char c : bytes) append_utf8(byte_alphabet()[static_cast<unsigned char>(c)], out);
  return out;
}

bool unspell_bytes(std::string_view spelled, std::string& bytes) {
  bytes.clear();
  for (size_t pos = 0; pos < spelled.size();) {
    const int byte = byte_of(next_char(spelled, pos));
    if (byte < 0) return false;
    bytes += static_cast<char>(byte);
  }
  return true;
}

int byte_token_value(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = -1;
  const char* end = token.data() + 5;
  return std::from_chars(token.data() + 3, end, value, 16).ptr == end ? value : -1;
}

}  // namespace kvant::tokenizer
