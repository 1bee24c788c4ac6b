// Text broken at blanks, for terminals.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvant::cli {

// Adds `text` and a line's end to `out`, no line wider than 100 columns unless a word is; the first
// line goes on where `out` is, which is column `indent`, and the others start there.
void append_wrapped(std::string& out, std::string_view text, size_t indent);

}  // namespace kvant::cli
