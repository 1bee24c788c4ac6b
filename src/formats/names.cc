#include "formats/names.h"

#include <algorithm>
#include <numeric>

namespace kvant {

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i) + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const int substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

std::string nearest_names(std::string_view name, const std::vector<std::string_view>& candidates,
                          size_t count) {
  // A name typed by a stranger may be a megabyte long; what counts is how it begins.
  const std::string_view typed = name.substr(0, 64);
  std::vector<std::pair<int, size_t>> ranked;  // distance, place in `candidates`
  ranked.reserve(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    ranked.emplace_back(edit_distance(typed, candidates[i]), i);
  }
  std::sort(ranked.begin(), ranked.end());
  std::string out;
  for (size_t i = 0; i < std::min(count, ranked.size()); ++i) {
    if (i > 0) out += ", ";
    out += candidates[ranked[i].second];
  }
  return out;
}

std::string printable(std::string_view text) {
  std::string out(text.substr(0, 64));
  for (char& c : out) {
    if (c < ' ' || c > '~') c = '?';
  }
  if (out.size() < text.size()) out += "...";
  return out;
}

std::string index_ranges(std::span<const int> indices) {
  std::string out;
  for (size_t i = 0; i < indices.size();) {
    size_t last = i;
    while (last + 1 < indices.size() && indices[last + 1] == indices[last] + 1) ++last;
    if (!out.empty()) out += ",";
    out += std::to_string(indices[i]);
    if (last > i) out += "-" + std::to_string(indices[last]);
    i = last + 1;
  }
  return out;
}

}  // namespace kvant
