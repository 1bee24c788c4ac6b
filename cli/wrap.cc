#include "cli/wrap.h"

#include <algorithm>

namespace kvant::cli {
namespace {

constexpr size_t kWidth = 100;

// Columns of UTF-8: what continues a character takes none.
size_t columns_of(std::string_view word) {
  return static_cast<size_t>(std::count_if(word.begin(), word.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

}  // namespace

void append_wrapped(std::string& out, std::string_view text, size_t indent) {
  size_t column = indent;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const size_t width = columns_of(text.substr(0, end));
    if (column > indent && column + 1 + width > kWidth) {
      out += '\n';
      out.append(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += text.substr(0, end);
    column += width;
    text.remove_prefix(end);
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  }
  out += '\n';
}

}  // namespace kvant::cli
