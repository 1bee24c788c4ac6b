// Shapes from configurations made in front of the reader.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
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

// Everything of a layer, in words.
inline std::string described(const CacheStream& stream) {
  std::string text(stream_kind_name(stream.kind));
  text += " " + std::to_string(stream.heads) + "x" + std::to_string(stream.k_dim) + "+" +
          std::to_string(stream.v_dim);
  if (stream.window > 0) text += " window " + std::to_string(stream.window);
  if (stream.tokens_per_entry != 1) text += " per " + std::to_string(stream.tokens_per_entry);
  return text;
}

inline std::string described(const ModelLayer& layer) {
  if (layer.shares >= 0) return "shares " + std::to_string(layer.shares);
  std::set<std::string> parts;
  for (const CacheStream& stream : layer.streams) parts.insert(described(stream));
  if (!layer.state.is_empty()) {
    parts.insert("state " + std::to_string(layer.state.recurrent_elements) + " of " +
                 std::to_string(layer.state.recurrent_bytes) + " conv " +
                 std::to_string(layer.state.conv_elements));
  }
  std::string text;
  for (const std::string& part : parts) text += part + "; ";
  return text;
}

// A planner whose layers are all in `format`.
inline Result<CachePlanner> planner_of(const ModelShape& shape, std::string_view format) {
  KVANT_ASSIGN(const ResolvedFormats formats, resolve_model_formats(shape, format, "", false));
  return CachePlanner::create(shape, formats.effective, {});
}

}  // namespace kvant
