#include "model/chat/text.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "model/tokenizer/unicode.h"

namespace kvant::chat {
namespace {

using tokenizer::append_utf8;
using tokenizer::next_char;

void append_upper(char32_t c, std::string& out) {
  if (c == 0xdf) {  // ß: the one common letter whose upper case has two
    out += "SS";
  } else {
    append_utf8(tokenizer::to_upper(c), out);
  }
}

template <typename Keep>
std::string_view strip_where(std::string_view text, Side side, const Keep& strips) {
  size_t begin = 0, end = text.size();
  if (side != Side::kRight) {
    while (begin < end) {
      size_t next = begin;
      if (!strips(next_char(text, next))) break;
      begin = next;
    }
  }
  if (side != Side::kLeft) {
    while (end > begin) {
      size_t last = end - 1;
      while (last > begin && (static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
      size_t pos = last;
      if (!strips(next_char(text, pos))) break;
      end = last;
    }
  }
  return text.substr(begin, end - begin);
}

// Each letter upper where `starts(previous)` says that a word begins, lower elsewhere.
template <typename Starts>
std::string by_words(std::string_view text, const Starts& starts) {
  std::string out;
  char32_t previous = ' ';
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = next_char(text, pos);
    if (starts(previous)) {
      append_upper(c, out);
    } else {
      append_utf8(tokenizer::to_lower(c), out);
    }
    previous = c;
  }
  return out;
}

}  // namespace

size_t num_chars(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string shortened(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "…";
}

size_t find_text(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size() || part.size() > text.size() - from) return std::string_view::npos;
  if (part.empty()) return from;
  const void* at = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  if (at == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(at) - text.data());
}

// Knuth, Morris and Pratt's search, both texts read from their ends.
size_t rfind_text(std::string_view text, std::string_view part) {
  const size_t size = part.size();
  if (size == 0) return text.size();
  // border[n]: how many of the last n characters of `part` are again its last ones.
  std::vector<size_t> border(size + 1, 0);
  const auto matched_with = [&](size_t matched, char c) {
    while (matched == size || (matched > 0 && part[size - 1 - matched] != c))
      matched = border[matched];
    return part[size - 1 - matched] == c ? matched + 1 : matched;
  };
  for (size_t n = 1; n < size; ++n) border[n + 1] = matched_with(border[n], part[size - 1 - n]);
  size_t matched = 0;
  for (size_t at = text.size(); at > 0; --at) {
    matched = matched_with(matched, text[at - 1]);
    if (matched == size) return at - 1;
  }
  return std::string_view::npos;
}

bool is_python_space(char32_t c) { return tokenizer::is_whitespace(c) || (c >= 0x1c && c <= 0x1f); }

std::string_view strip(std::string_view text, Side side) {
  return strip_where(text, side, &is_python_space);
}

std::string_view strip_chars(std::string_view text, std::string_view chars, Side side) {
  std::u32string set;
  for (size_t pos = 0; pos < chars.size();) set += next_char(chars, pos);
  std::sort(set.begin(), set.end());
  return strip_where(text, side,
                     [&](char32_t c) { return std::binary_search(set.begin(), set.end(), c); });
}

std::vector<std::string> split(std::string_view text, std::string_view separator, int64_t limit) {
  std::vector<std::string> parts;
  size_t done = 0;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = find_text(text, separator, done);
    if (at == std::string_view::npos) break;
    parts.emplace_back(text.substr(done, at - done));
    done = at + separator.size();
  }
  parts.emplace_back(text.substr(done));
  return parts;
}

std::vector<std::string> split_spaces(std::string_view text, int64_t limit) {
  std::vector<std::string> parts;
  text = strip(text, Side::kLeft);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.emplace_back(strip(text, Side::kRight));
      break;
    }
    size_t end = 0;
    while (end < text.size()) {
      size_t next = end;
      if (is_python_space(next_char(text, next))) break;
      end = next;
    }
    parts.emplace_back(text.substr(0, end));
    text = strip(text.substr(end), Side::kLeft);
  }
  return parts;
}

std::vector<std::string> split_right(std::string_view text, std::string_view separator,
                                     int64_t limit) {
  std::vector<std::string> parts;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = rfind_text(text, separator);
    if (at == std::string_view::npos) break;
    parts.emplace_back(text.substr(at + separator.size()));
    text = text.substr(0, at);
  }
  parts.emplace_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  const auto ends_line = [](char32_t c) {
    return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
  };
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = pos;
    const char32_t c = next_char(text, pos);
    if (!ends_line(c)) continue;
    if (c == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
    lines.emplace_back(text.substr(begin, (keep_ends ? pos : end) - begin));
    begin = pos;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

std::string replace(std::string_view text, std::string_view old, std::string_view with,
                    int64_t limit) {
  std::string out;
  int64_t count = 0;
  size_t done = 0;
  if (old.empty()) {  // between all characters
    for (size_t pos = 0; pos <= text.size();) {
      if (limit < 0 || count++ < limit) out += with;
      if (pos == text.size()) break;
      const size_t begin = pos;
      next_char(text, pos);
      out += text.substr(begin, pos - begin);
    }
    return out;
  }
  for (; limit < 0 || count < limit; ++count) {
    const size_t at = find_text(text, old, done);
    if (at == std::string_view::npos) break;
    out += text.substr(done, at - done);
    out += with;
    done = at + old.size();
  }
  out += text.substr(done);
  return out;
}

std::string upper(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) append_upper(next_char(text, pos), out);
  return out;
}

std::string lower(std::string_view text) { return tokenizer::lowercase(text); }

std::string capitalize(std::string_view text) {
  bool first = true;
  return by_words(text, [&](char32_t) { return std::exchange(first, false); });
}

std::string title(std::string_view text) {
  return by_words(text, [](char32_t previous) { return !tokenizer::is_alphabetic(previous); });
}

std::string title_filter(std::string_view text) {
  return by_words(text, [](char32_t previous) {
    return is_python_space(previous) ||
           std::u32string_view(U"-({[<").find(previous) != std::u32string_view::npos;
  });
}

}  // namespace kvant::chat
