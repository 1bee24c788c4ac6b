// Python's string methods over UTF-8 text: positions and lengths are code points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvant::chat {

size_t num_chars(std::string_view text);
// The start of a text that a message quotes, so that no message is as long as what it is about.
std::string shortened(std::string_view text, size_t max_bytes = 80);

// string_view::find and rfind, but linear in both texts: the standard ones take their product on
// texts made for it.
size_t find_text(std::string_view text, std::string_view part, size_t from = 0);
size_t rfind_text(std::string_view text, std::string_view part);
bool is_python_space(char32_t c);  // str.isspace: White_Space and the separators U+001C to U+001F

// str.strip and its halves; without `chars` white space.
enum class Side : uint8_t { kLeft, kRight, kBoth };
std::string_view strip(std::string_view text, Side side);
std::string_view strip_chars(std::string_view text, std::string_view chars, Side side);

// str.split and str.rsplit; `limit` below 0: all. Without a separator at runs of white space.
std::vector<std::string> split(std::string_view text, std::string_view separator, int64_t limit);
std::vector<std::string> split_spaces(std::string_view text, int64_t limit);
std::vector<std::string> split_right(std::string_view text, std::string_view separator,
                                     int64_t limit);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends);

std::string replace(std::string_view text, std::string_view old, std::string_view with,
                    int64_t limit);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);  // str.title: a word begins behind what isn't a letter
std::string title_filter(
    std::string_view text);  // Jinja's filter: behind spaces, - and opening brackets

}  // namespace kvant::chat
