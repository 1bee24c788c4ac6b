// Any K format with any V format (F17).
#include "cache_world.h"
#include "formats/tested_formats.h"

namespace kvant::test {
namespace {

// Case B12: K and V of different width and type. Every pair is served, and right, or refused before
// a page exists.
TEST(Pairs, CaseB12_AnyKeyFormatGoesWithAnyValueFormat) {
  size_t served = 0, refused = 0;
  ThreadPool threads(1);
  const std::vector<std::string> names = tested_formats();
  for (const auto& [key_dim, value_dim] : {std::pair{48, 32}, {24, 16}}) {
    for (const std::string& key_name : names) {
      for (const std::string& value_name : names) {
        const FormatInfo &key = **find_format(key_name), &value = **find_format(value_name);
        if (key.rotated != value.rotated)
          continue;  // halves the product; mixtures are in the presets
        CacheLayer layer = make_layer(key.name, value.name, 0, 1, key_dim, value_dim);
        if (key.scale_source == ScaleSource::kGiven) layer.key_scale = 0.05f;
        layer.key_artifacts = any_artifacts(key, 1, key_dim);
        if (value.scale_source == ScaleSource::kGiven) layer.value_scale = 0.05f;
        CacheOptions options;
        options.layers = {layer};
        options.sinks = 0;
        if (const auto cache = KvCache::create(options, threads); !cache.ok()) {
          ASSERT_EQ(cache.status().code(), Code::kUnsupported) << cache.status().message();
          ++refused;
          continue;
        }
        ++served;
        CacheWorld world({.cache = options, .group = 1});
        const SequenceId id = world.new_sequence();
        world.attends = false;
        world.feed(id, 1, 66, {66});
        world.attends = true;
        world.after_attend = [&](int l, const auto& feeds, const auto& begins,
                                 const auto& outputs) {
          ASSERT_LT(reference_error(world, feeds[0], begins[0], l, outputs[0][0]),
                    kernel_bound(layer.formats))
              << layer.formats.name();
        };
        world.feed(id, 1, 68, {2});
      }
    }
  }
  EXPECT_GT(served, names.size());
  EXPECT_GT(refused, 0u) << "24 channels are no multiple of 16";
}

}  // namespace
}  // namespace kvant::test
