// Everything in a cache's options that changes a page's bytes changes its identity, and nothing
// else does.
#include "attention/cache_identity.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

namespace kvant {
namespace {

CacheOptions two_layers() {
  CacheOptions options;
  options.layers.resize(2);
  for (CacheLayer& layer : options.layers) {
    layer.num_kv_heads = 2;
    layer.key_dim = layer.value_dim = 64;
    layer.formats = {"int8_channel_z", "int8_token"};
  }
  options.model_identity = "m";
  return options;
}

TEST(CacheIdentity, CaseC15_ChangesWithEverythingThatPagesDependOn) {
  const auto artifacts = [](float number) {
    return std::make_shared<const HeadArtifacts>(HeadArtifacts{{number, 2}, {3}});
  };
  const std::vector<std::function<void(CacheOptions&)>> changes = {
      [](CacheOptions&) {},
      [](CacheOptions& o) { o.model_identity = "n"; },
      [](CacheOptions& o) { o.sinks = 128; },
      [](CacheOptions& o) { o.exact_window = 64; },
      [](CacheOptions& o) { o.rotation_seed = 1; },
      [](CacheOptions& o) { o.decode_pages = true; },
      [](CacheOptions& o) { o.layers.pop_back(); },
      [](CacheOptions& o) { o.layers[1].num_kv_heads = 1; },
      [](CacheOptions& o) { o.layers[1].key_dim = 128; },
      [](CacheOptions& o) { o.layers[1].value_dim = 128; },
      [](CacheOptions& o) { o.layers[1].value_source = ValueSource::kKeyRange; },
      [](CacheOptions& o) { o.layers[1].value_offset = 16; },
      [](CacheOptions& o) { o.layers[1].window = 64; },
      [](CacheOptions& o) { o.layers[0].window = 64; },
      [](CacheOptions& o) { o.layers[1].shares = 0; },
      [](CacheOptions& o) {
        o.layers[1].formats = {"int8_token", "int8_channel_z"};
      },
      [](CacheOptions& o) {
        o.layers[0].formats = {"int8_token", "int8_channel_z"};
      },
      [](CacheOptions& o) { o.layers[1].key_scale = 2; },
      [](CacheOptions& o) { o.layers[1].value_scale = 2; },
      [](CacheOptions& o) {
        o.layers[1].key_head_scales = {1, 2};
      },
      [](CacheOptions& o) {
        o.layers[1].value_head_scales = {1, 2};
      },
      [](CacheOptions& o) {
        o.layers[1].key_head_scales = {2, 1};
      },
      [](CacheOptions& o) {
        o.layers[1].rope.inv_freq = {1, 2};
      },
      [](CacheOptions& o) { o.layers[1].rope.attention_factor = 2; },
      [&](CacheOptions& o) { o.layers[1].key_artifacts = artifacts(1); },
      [&](CacheOptions& o) { o.layers[1].key_artifacts = artifacts(4); },
      [&](CacheOptions& o) { o.layers[1].value_artifacts = artifacts(1); },
  };
  std::set<std::string> seen;
  for (size_t i = 0; i < changes.size(); ++i) {
    CacheOptions options = two_layers();
    changes[i](options);
    const std::string identity = cache_identity(options, Isa::kScalar);
    EXPECT_EQ(identity.size(), 32u);
    EXPECT_TRUE(seen.insert(identity).second) << "change " << i;
  }
  EXPECT_TRUE(seen.insert(cache_identity(two_layers(), Isa::kAvx2)).second);
  CacheOptions same = two_layers();
  same.max_bytes = 12345;
  same.preallocate_tokens = 64;
  same.prefix_cache = same.paths_agree = true;
  EXPECT_FALSE(seen.insert(cache_identity(same, Isa::kScalar)).second);
}

}  // namespace
}  // namespace kvant
