// Names in messages: the known ones nearest to a mistyped one, and layers by number.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvant {

// Levenshtein distance: insertions, deletions and substitutions that turn one text into the other.
int edit_distance(std::string_view a, std::string_view b);

// The up to `count` candidates nearest to `name`, nearest first, joined by ", ". Equal distances
// keep their order.
std::string nearest_names(std::string_view name, const std::vector<std::string_view>& candidates,
                          size_t count);

// `text` fit for an error message: at most 64 characters, anything but printable ASCII as '?'.
std::string printable(std::string_view text);

// Rising indices as ranges: "0-4,6".
std::string index_ranges(std::span<const int> indices);

}  // namespace kvant
