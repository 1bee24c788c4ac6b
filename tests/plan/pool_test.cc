// The plan against the pool: caches of real models are filled, and both count their bytes.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "base/rng.h"
#include "base/threads.h"
#include "kvant/cache.h"
#include "kvant/plan.h"
#include "model/models_folder.h"
#include "model/open_decoder.h"

namespace kvant {
namespace {

constexpr int kStep = 512;

// Random rows, the same for every layer and step: their values don't change a size.
class Filler {
 public:
  explicit Filler(const CacheOptions& options) {
    size_t most = 0;
    for (const CacheLayer& layer : options.layers) {
      const auto width = static_cast<size_t>(std::max(layer.key_dim, layer.value_dim));
      most = std::max(most, static_cast<size_t>(layer.num_kv_heads) * width);
    }
    Rng rng(1);
    rows_.resize(most * kStep * 2);
    for (float& x : rows_) x = static_cast<float>(rng.below(2001)) / 1000 - 1;
  }

  // In steps of at most kStep tokens; what the cache says of the first step that fails.
  Status grow(KvCache& cache, SequenceId sequence, int64_t tokens) const {
    while (tokens > 0) {
      const int now = static_cast<int>(std::min<int64_t>(tokens, kStep));
      const StepItem item{.sequence = sequence, .num_tokens = now};
      KVANT_TRY(cache.begin_step({&item, 1}));
      for (size_t l = 0; l < cache.options().layers.size(); ++l) {
        if (cache.options().layers[l].shares >= 0) continue;
        KVANT_TRY(cache.append(static_cast<int>(l), rows_.data(), rows_.data()));
      }
      KVANT_TRY(cache.end_step());
      tokens -= now;
    }
    return {};
  }

 private:
  std::vector<float> rows_;
};

// A model's layers as the engine has them and as its file's metadata says.
class PlannedModel : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    path_ = models_folder() / GetParam();
    if (!std::filesystem::exists(path_))
      GTEST_SKIP() << path_ << " is missing (tools/setup.sh models)";
    const auto opened = open_decoder(path_, {}, threads_);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    options_.layers = opened->decoder->info().cache_layers;
    traits_ = opened->decoder->info().traits;
    const auto shape = read_model_shape(path_);
    ASSERT_TRUE(shape.ok()) << shape.status().message();
    shape_ = *shape;
  }

  CachePlanner planner(const std::string& kv, const std::string& kv_layers, CacheOptions& options,
                       int exact_window = 0) {
    const auto formats = resolve_model_formats(shape_, kv, kv_layers, false);
    EXPECT_TRUE(formats.ok()) << formats.status().message();
    for (size_t l = 0; l < options.layers.size(); ++l)
      options.layers[l].formats = formats->effective[l];
    options.exact_window = exact_window;
    auto planner = CachePlanner::create(
        shape_, formats->effective, {.sinks = options.sinks, .exact_window = options.exact_window});
    EXPECT_TRUE(planner.ok()) << planner.status().message();
    return std::move(planner).value();
  }

  std::filesystem::path path_;
  ThreadPool threads_{1};
  CacheOptions options_;
  ModelTraits traits_;
  ModelShape shape_;
};

// P1 to P3: one arithmetic.
TEST_P(PlannedModel, TakesTheBytesThatThePoolCounts) {
  const Filler filler(options_);
  EXPECT_EQ(shape_.traits.qk_norm, traits_.qk_norm);
  struct Case {
    const char* kv;
    const char* layers;
    int sinks, exact_window;
  };
  for (const Case& c : {Case{"bf16", "", 64, 0},
                        {"f32", "", 64, 0},
                        {"int8", "", 64, 0},
                        {"k8v4", "0=bf16", 64, 0},
                        {"int4", "", 0, 0},
                        {"int4", "-1=fp8", 128, 192},
                        {"int2", "", 64, 0},
                        {"kivi2", "", 64, 64},
                        {"bf16/int8_token", "", 64, 0}}) {
    CacheOptions options = options_;
    options.sinks = c.sinks;
    const CachePlanner plan = planner(c.kv, c.layers, options, c.exact_window);
    const auto cache = KvCache::create(options, threads_);
    ASSERT_TRUE(cache.ok()) << cache.status().message();
    const SequenceId sequence = (*cache)->create_sequence().value();
    int64_t length = 0;
    for (const int64_t next : {1, 63, 64, 65, 500, 511, 577, 640, 1300}) {
      ASSERT_TRUE(filler.grow(**cache, sequence, next - length).ok());
      length = next;
      const CacheUsage usage = (*cache)->usage();
      const CacheBytes bytes = plan.bytes({.tokens = length}).value();
      EXPECT_EQ(bytes.kv(), usage.live_bytes) << c.kv << " at " << length;
      EXPECT_EQ(bytes.sealed, usage.sealed_bytes) << c.kv << " at " << length;
      EXPECT_EQ(bytes.ideal, usage.ideal_bytes) << c.kv << " at " << length;
      EXPECT_LE(usage.live_bytes, bytes.needed) << c.kv << " at " << length;
    }
  }
}

// P4: sequences that share a prefix hold its whole pages once.
TEST_P(PlannedModel, SharesAPrefixAsForksDo) {
  const Filler filler(options_);
  for (const char* kv : {"bf16", "int8", "int4"}) {
    for (const int64_t prefix : {64, 320}) {
      CacheOptions options = options_;
      const CachePlanner plan = planner(kv, "", options);
      const auto cache = KvCache::create(options, threads_);
      const SequenceId first = (*cache)->create_sequence().value();
      ASSERT_TRUE(filler.grow(**cache, first, prefix).ok());
      std::vector<SequenceId> all = {first};
      for (int i = 0; i < 3; ++i) {
        const auto fork = (*cache)->fork(first, prefix);
        ASSERT_TRUE(fork.ok()) << fork.status().message();
        ASSERT_EQ(fork->rollback.kept, prefix);
        all.push_back(fork->sequence);
      }
      constexpr int64_t kLength = 450;  // inside every window
      for (const SequenceId id : all) ASSERT_TRUE(filler.grow(**cache, id, kLength - prefix).ok());
      const SequenceSet set{.tokens = kLength, .sequences = 4, .shared_prefix = prefix};
      EXPECT_EQ(plan.bytes(set)->kv(), (*cache)->usage().live_bytes) << kv << ", " << prefix;
    }
  }
}

// A13: what is said to fit does fit: the pool grows to the longest length in the bytes given.
TEST_P(PlannedModel, GrowsToTheLongestLengthInTheBytesThatItIsPlannedFor) {
  const Filler filler(options_);
  for (const char* kv : {"bf16", "int8", "int3"}) {
    CacheOptions options = options_;
    const CachePlanner plan = planner(kv, "", options);
    options.max_bytes = plan.bytes({.tokens = 1000})->needed;
    const int64_t longest = plan.max_tokens({}, options.max_bytes, 1 << 20).value();
    EXPECT_GE(longest, 1000);
    EXPECT_GT(plan.bytes({.tokens = longest + 1})->needed, options.max_bytes);
    const auto cache = KvCache::create(options, threads_);
    const SequenceId sequence = (*cache)->create_sequence().value();
    const Status grown = filler.grow(**cache, sequence, longest);
    EXPECT_TRUE(grown.ok()) << kv << ": " << grown.message();
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PlannedModel,
                         testing::Values("SmolLM2-135M-Instruct.Q4_1.gguf",
                                         "gemma-3-270m-q4_k_m.gguf"),
                         [](const auto& info) { return "model" + std::to_string(info.index); });

}  // namespace
}  // namespace kvant
