#include "calibrate/overlap.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "files/digest.h"

namespace kvant {
namespace {

constexpr size_t kShortestLine = 32;  // bytes
constexpr size_t kHashDigits = 16;    // hexadecimal, of 64 bits
constexpr std::string_view kBlanks = " \t\r";

int64_t hash_of(std::string_view line) {
  Digest digest;
  digest.add(line);
  const std::string hex = digest.hex();
  uint64_t hash = 0;
  std::from_chars(hex.data(), hex.data() + kHashDigits, hash, 16);
  return static_cast<int64_t>(hash);
}

void add_lines(std::string_view text, std::vector<int64_t>& hashes) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    line = line.substr(0, line.find_last_not_of(kBlanks) + 1);
    if (line.size() >= kShortestLine) hashes.push_back(hash_of(line));
  }
}

std::vector<int64_t> sorted_once(std::vector<int64_t> hashes) {
  std::sort(hashes.begin(), hashes.end());
  hashes.erase(std::unique(hashes.begin(), hashes.end()), hashes.end());
  return hashes;
}

}  // namespace

std::vector<int64_t> line_hashes(std::string_view text) {
  std::vector<int64_t> hashes;
  add_lines(text, hashes);
  return sorted_once(std::move(hashes));
}

std::vector<int64_t> line_hashes(std::span<const Document> documents) {
  std::vector<int64_t> hashes;
  for (const Document& document : documents) {
    add_lines(document.text, hashes);
    for (const ChatMessage& message : document.messages) add_lines(message.content, hashes);
  }
  return sorted_once(std::move(hashes));
}

int64_t count_shared(std::span<const int64_t> lines, std::span<const int64_t> known) {
  return std::count_if(lines.begin(), lines.end(), [&](int64_t hash) {
    return std::binary_search(known.begin(), known.end(), hash);
  });
}

Overlap overlap_of(std::string_view text, std::span<const int64_t> known) {
  const std::vector<int64_t> hashes = line_hashes(text);
  return {.shared = count_shared(hashes, known), .lines = static_cast<int64_t>(hashes.size())};
}

}  // namespace kvant
