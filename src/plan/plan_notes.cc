#include "plan/plan_notes.h"

#include <algorithm>

#include "formats/names.h"
#include "plan/planning.h"

namespace kvant {
namespace {

constexpr size_t kListed = 6;  // of a hundred names nobody reads more

void append_item(std::string& list, const std::string& item) {
  list += (list.empty() ? "" : ", ") + item;
}

std::string name_list(std::span<const std::string> names) {
  std::string list;
  for (const std::string& name : names.first(std::min(names.size(), kListed)))
    append_item(list, name);
  if (names.size() <= kListed) return list;
  return list + " and " + std::to_string(names.size() - kListed) + " more";
}

// A layer without V has nothing that would fall back beside its K.
bool stores_value(const ModelShape& shape, int layer) {
  const auto& streams = shape.layers[static_cast<size_t>(layer)].streams;
  return !streams.empty() && streams.front().v_dim > 0;
}

bool is_said_of_keys(const ModelShape& shape, std::span<const FormatFallback> all,
                     const FormatFallback& one) {
  if (one.side == Side::kKey || stores_value(shape, one.layers.front())) return false;
  return std::any_of(all.begin(), all.end(), [&](const FormatFallback& other) {
    return other.side == Side::kKey && other.layers == one.layers && other.reason == one.reason;
  });
}

}  // namespace

std::vector<std::string> fallback_notes(const ModelShape& shape,
                                        std::span<const FormatFallback> fallbacks) {
  struct Group {
    const FormatFallback* first;
    std::vector<std::string> formats;
  };
  std::vector<Group> groups;
  for (const FormatFallback& one : fallbacks) {
    if (is_said_of_keys(shape, fallbacks, one)) continue;
    const auto at = std::find_if(groups.begin(), groups.end(), [&](const Group& known) {
      return known.first->side == one.side && known.first->reason == one.reason &&
             known.first->layers == one.layers;
    });
    if (at == groups.end()) {
      groups.push_back({&one, {one.format}});
    } else {
      at->formats.push_back(one.format);
    }
  }
  std::vector<std::string> notes;
  for (const auto& [first, formats] : groups) {
    notes.push_back((first->layers.size() == 1 ? "layer " : "layers ") +
                    index_ranges(first->layers) + ": " + std::string(side_name(first->side)) +
                    " uses bf16 instead of " + name_list(formats) + ": " + first->reason);
  }
  return notes;
}

std::vector<std::string> left_out_notes(std::span<const LeftOut> formats) {
  if (formats.empty()) return {};
  std::vector<std::string> names;
  for (const LeftOut& one : formats) names.push_back(one.format);
  return {name_list(names) + (names.size() == 1 ? " is" : " are") +
          " left out: " + formats.front().reason};
}

std::vector<std::string> by_bits_notes(std::span<const std::string> formats) {
  if (formats.empty()) return {};
  const bool one = formats.size() == 1;
  return {name_list(formats) + (one ? " isn't" : " aren't") + " measured on real models; " +
          (one ? "it is placed by its bits" : "they are placed by their bits")};
}

std::vector<std::string> source_notes(const ModelShape& shape, const PlanRequest& request) {
  if (request.source_tokens > 0 || shape.source_tokens > 0) return {};
  if (!has_cross_attention(shape)) return {};
  return {
      "cross attention is counted for a source as long as the text; --source-tokens gives its "
      "length"};
}

std::vector<std::string> length_notes(const ModelShape& shape, std::span<const int64_t> lengths) {
  std::string longer;
  for (const int64_t tokens : lengths) {
    if (tokens > shape.max_positions) append_item(longer, std::to_string(tokens));
  }
  if (shape.max_positions == 0 || longer.empty()) return {};
  return {longer + " tokens are more than the " + std::to_string(shape.max_positions) +
          " that the model is made for"};
}

}  // namespace kvant
