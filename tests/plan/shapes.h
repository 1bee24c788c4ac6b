// Shapes from configurations made in front of the reader.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "kvant/plan.h"

namespace kvant {

using nlohmann::json;

inline Result<ModelShape> shape_of(const json& config) {
  return parse_model_shape(config.dump(), "config.json");
}

// The message of a refusal.
inline std::string refusal(const json& config) {
  const Result<ModelShape> shape = shape_of(config);
  return shape.ok() ? "it was read" : shape.status().message();
}

inline std::string notes_of(const ModelShape& shape) {
  std::string all;
  for (const std::string& note : shape.notes) all += note + "\n";
  return all;
}

// Bytes that one more token adds in 16 bits, before any window is full.
inline int64_t bytes_per_token(const ModelShape& shape) {
  int64_t bytes = 0;
  for (const ModelLayer& layer : shape.layers) {
    if (layer.shares >= 0) continue;
    for (const CacheStream& stream : layer.streams)
      bytes += 2 * stream.entry_elements() / stream.tokens_per_entry;
  }
  return bytes;
}

// A planner whose layers are all in `format`.
inline Result<CachePlanner> planner_of(const ModelShape& shape, std::string_view format) {
  KVANT_ASSIGN(const ResolvedFormats formats, resolve_model_formats(shape, format, "", false));
  return CachePlanner::create(shape, formats.effective, {});
}

}  // namespace kvant
