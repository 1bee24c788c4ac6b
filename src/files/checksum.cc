#include "files/checksum.h"

#include <optional>

#include "files/digest.h"
#include "files/mapped_file.h"

namespace kvant {
namespace {

constexpr std::string_view kKey = "kvant.checksum";
constexpr size_t kDigits = 32;
// A header begins with its length in 8 bytes, `{"__metadata__":{` and the key.
constexpr size_t kSearched = 256;

std::string_view text_of(std::span<const std::byte> file) {
  return {reinterpret_cast<const char*>(file.data()), file.size()};
}

// Where the digits begin. A quote inside of a JSON text has a backslash, so no value looks alike.
std::optional<size_t> find_digits(std::string_view file) {
  const std::string before = "\"" + std::string(kKey) + "\":\"";
  const size_t at = file.substr(0, kSearched).find(before);
  if (at == file.npos || at + before.size() + kDigits > file.size()) return std::nullopt;
  return at + before.size();
}

std::string sum_of(std::string_view file, size_t digits) {
  Digest digest;
  digest.add(file.substr(0, digits));
  digest.add(std::string(kDigits, '0'));
  digest.add(file.substr(digits + kDigits));
  return digest.hex();
}

}  // namespace

std::pair<std::string, std::string> checksum_placeholder() {
  return {std::string(kKey), std::string(kDigits, '0')};
}

std::string with_checksum(std::string file) {
  if (const std::optional<size_t> digits = find_digits(file))
    file.replace(*digits, kDigits, sum_of(file, *digits));
  return file;
}

Status check_checksum(std::span<const std::byte> file, std::string_view name) {
  const std::string_view text = text_of(file);
  const std::optional<size_t> digits = find_digits(text);
  if (!digits) {
    return corrupt(std::string(name) + " is damaged: its " + std::string(kKey) +
                   " is gone; wanted the file as it was written");
  }
  const std::string_view wanted = text.substr(*digits, kDigits);
  const std::string seen = sum_of(text, *digits);
  if (wanted == seen) return {};
  return corrupt(std::string(name) + " is damaged: its bytes sum up to " + seen + ", its " +
                 std::string(kKey) + " is " + in_quotes(wanted) +
                 "; wanted the file as it was written");
}

}  // namespace kvant
