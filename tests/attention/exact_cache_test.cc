// The cache with exact formats only: the baseline that every other test stands on.
#include "cache_world.h"

namespace kvant::test {
namespace {

const std::vector<std::vector<int>> kChunkings = {{1000}, {64}, {128}, {1}, {7, 1, 90}};

TEST(ExactCache, EqualsTheReference) {
  for (const char* format : {"f32", "f16", "bf16"}) {
    CacheWorld world(
        {.cache = {.layers = {make_layer(format, format), make_layer(format, format, 70)}}});
    world.after_attend = [&](int layer, const auto& feeds, const auto& begins,
                             const auto& outputs) {
      EXPECT_LT(reference_error(world, feeds[0], begins[0], layer,
                                outputs[0][static_cast<size_t>(layer)]),
                2e-6)
          << format << " layer " << layer;
    };
    world.feed(world.new_sequence(), 1, 200, {64, 1, 3, 100});
  }
}

TEST(ExactCache, AnyChunkingGivesTheSameBits) {
  for (const char* format : {"f32", "bf16"}) {
    Outputs first;
    for (const std::vector<int>& chunks : kChunkings) {
      CacheWorld world({.cache = {.layers = {make_layer(format, format, 0, 1, 16, 16),
                                             make_layer(format, format, 70, 1, 16, 16)}}});
      const Outputs out = world.feed(world.new_sequence(), 1, 700, chunks);
      if (first.empty()) first = out;
      EXPECT_EQ(out, first) << format << " in chunks of " << chunks[0];
    }
  }
}

}  // namespace
}  // namespace kvant::test
