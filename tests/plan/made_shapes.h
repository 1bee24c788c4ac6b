// Models of a few layers, made in front of the reader.
#pragma once

#include <gtest/gtest.h>

#include "shapes.h"

namespace kvant {

inline constexpr int kDim = 64;
inline constexpr uint64_t kPage = uint64_t{64} * 2 * kDim * 2;  // K and V of one head in bf16

inline ModelLayer layer_of(CacheStream stream) { return {.streams = {stream}, .state = {}}; }
inline ModelLayer full(int heads) {
  return layer_of({.kind = StreamKind::kFull, .heads = heads, .k_dim = kDim, .v_dim = kDim});
}
inline ModelLayer sliding(int heads, int64_t window) {
  ModelLayer layer = full(heads);
  layer.streams[0].kind = StreamKind::kSliding;
  layer.streams[0].window = window;
  return layer;
}
inline ModelLayer latent(int width) {
  return layer_of({.kind = StreamKind::kLatent, .heads = 1, .k_dim = width});
}
inline ModelLayer state_of(int64_t recurrent, int64_t conv, int heads) {
  return {.streams = {},
          .state = {.recurrent_elements = recurrent, .conv_elements = conv, .heads = heads}};
}
inline ModelLayer sharing(int owner) {
  ModelLayer layer = full(1);
  layer.shares = owner;
  return layer;
}

inline ModelShape model(std::vector<ModelLayer> layers, int query_heads = 8) {
  ModelShape shape;
  shape.source = "made here";
  shape.architecture = "made";
  shape.layers = std::move(layers);
  shape.num_query_heads = query_heads;
  return shape;
}

inline CachePlanner planner_with(const ModelShape& shape, std::string_view format,
                                 const PlanOptions& options = {}) {
  const auto formats = resolve_model_formats(shape, format, "", false);
  EXPECT_TRUE(formats.ok()) << formats.status().message();
  auto planner = CachePlanner::create(shape, formats->effective, options);
  EXPECT_TRUE(planner.ok()) << planner.status().message();
  return *std::move(planner);
}

inline uint64_t kv_bytes(const CachePlanner& planner, const SequenceSet& set) {
  const auto bytes = planner.bytes(set);
  EXPECT_TRUE(bytes.ok()) << bytes.status().message();
  return bytes->kv();
}

}  // namespace kvant
