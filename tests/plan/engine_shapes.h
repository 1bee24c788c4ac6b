// The shape that the planner reads from a model's files, beside the layers that the engine makes of
// the loaded model.
#pragma once

#include "../model/model_harness.h"
#include "shapes.h"

namespace kvant {

inline ModelLayer layer_of_engine(const CacheLayer& layer) {
  const bool latent = layer.value_source == ValueSource::kKeyRange;
  const StreamKind kind = latent             ? StreamKind::kLatent
                          : layer.window > 0 ? StreamKind::kSliding
                                             : StreamKind::kFull;
  return {.streams = {{.kind = kind,
                       .heads = layer.num_kv_heads,
                       .k_dim = layer.key_dim,
                       .v_dim = latent ? 0 : layer.value_dim,
                       .window = layer.window}},
          .state = {},
          .shares = layer.shares};
}

inline void expect_the_engines_shape(const std::filesystem::path& path) {
  TestModel model(path, {}, /*num_threads=*/1);
  ASSERT_TRUE(model.ok()) << path;
  const ModelInfo& info = model.decoder().info();
  const auto shape = read_model_shape(path);
  ASSERT_TRUE(shape.ok()) << shape.status().message();
  ASSERT_EQ(shape->layers.size(), info.cache_layers.size()) << path;
  for (size_t i = 0; i < shape->layers.size(); ++i)
    EXPECT_EQ(described(shape->layers[i]), described(layer_of_engine(info.cache_layers[i])))
        << path << " layer " << i;
  EXPECT_EQ(shape->num_query_heads, info.num_query_heads) << path;
  EXPECT_EQ(shape->traits.qk_norm, info.traits.qk_norm) << path;
  EXPECT_EQ(shape->traits.declared, info.traits.declared) << path;
  if (shape->num_parameters > 0) {
    EXPECT_NEAR(static_cast<double>(shape->num_parameters),
                static_cast<double>(info.num_parameters),
                0.02 * static_cast<double>(info.num_parameters))
        << path << ": norms weigh more in a tiny model";
  }
  EXPECT_GT(shape->weight_bytes, 0u) << path;
}

}  // namespace kvant
