// What KvCache answers to whoever asks for pages in the wrong way.
#include <gtest/gtest.h>

#include "base/threads.h"
#include "kvant/cache.h"

namespace kvant {
namespace {

class SharedCacheTest : public testing::Test {
 protected:
  void open(CacheOptions options = {}) {
    options.layers.resize(1);
    CacheLayer& layer = options.layers[0];
    layer.num_kv_heads = 1;
    layer.key_dim = layer.value_dim = 16;
    layer.formats = {"int8_token", "int8_token"};
    cache_ = std::move(KvCache::create(options, threads_).value());
  }
  void append(SequenceId id, int tokens) {
    const StepItem item{id, tokens};
    ASSERT_TRUE(cache_->begin_step({&item, 1}).ok());
    const std::vector<float> rows(static_cast<size_t>(tokens) * 16, 0.5f);
    ASSERT_TRUE(cache_->append(0, rows.data(), rows.data()).ok());
    ASSERT_TRUE(cache_->end_step().ok());
  }
  ThreadPool threads_{1};
  std::unique_ptr<KvCache> cache_;
};

TEST_F(SharedCacheTest, PrefixesAreRefusedWhereNoneAreKept) {
  open();
  const SequenceId id = cache_->create_sequence().value();
  const std::vector<int32_t> tokens(64, 1);
  append(id, 64);
  for (const Status& status :
       {cache_->publish(id, tokens, ""), cache_->create_from_prefix(tokens, "").status(),
        cache_->clear_prefixes()}) {
    EXPECT_EQ(status.code(), Code::kUnsupported);
    EXPECT_NE(status.message().find("prefix_cache"), std::string::npos) << status.message();
  }
  EXPECT_TRUE(cache_->swap_out(id).ok()) << "which needs no index";
  EXPECT_GT(cache_->usage().swapped_bytes, 0u);
  EXPECT_EQ(cache_->length(id).value(), 64);
  EXPECT_TRUE(cache_->swap_in(id).ok());
  EXPECT_TRUE(cache_->check_invariants().ok());
}

TEST_F(SharedCacheTest, PublishWantsAllTokensOfASequenceThatIsThere) {
  open({.layers = {}, .prefix_cache = true});
  const SequenceId id = cache_->create_sequence().value();
  append(id, 130);
  const std::vector<int32_t> tokens(130, 1);
  const Status few = cache_->publish(id, std::span(tokens).first(128), "");
  EXPECT_EQ(few.code(), Code::kInvalidArgument);
  EXPECT_NE(few.message().find("130"), std::string::npos) << few.message();
  EXPECT_EQ(cache_->publish(id + 9, tokens, "").code(), Code::kNotFound);
  EXPECT_EQ(cache_->swap_out(id + 9).code(), Code::kNotFound);
  EXPECT_EQ(cache_->swap_in(id + 9).code(), Code::kNotFound);
  const StepItem item{id, 1};
  ASSERT_TRUE(cache_->begin_step({&item, 1}).ok());
  for (const Status& status :
       {cache_->publish(id, tokens, ""), cache_->create_from_prefix(tokens, "").status(),
        cache_->clear_prefixes(), cache_->swap_out(id), cache_->swap_in(id)}) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << "a step is running";
  }
  cache_->abort_step();
  ASSERT_TRUE(cache_->swap_out(id).ok());
  EXPECT_EQ(cache_->publish(id, tokens, "").code(), Code::kInvalidArgument);
  EXPECT_EQ(cache_->begin_step({&item, 1}).code(), Code::kInvalidArgument);
  ASSERT_TRUE(cache_->swap_in(id).ok());
  ASSERT_TRUE(cache_->publish(id, tokens, "").ok());
  ASSERT_TRUE(cache_->release_sequence(id).ok());
  const CacheUsage usage = cache_->usage();
  EXPECT_GT(usage.cached_bytes, 0u);
  EXPECT_EQ(usage.cached_bytes, usage.live_bytes);
  EXPECT_EQ(cache_->create_from_prefix(tokens, "")->tokens, 128);
  ASSERT_TRUE(cache_->clear_prefixes().ok());
  EXPECT_EQ(cache_->usage().cached_bytes, 0u);
  EXPECT_TRUE(cache_->check_invariants().ok());
}

// The longest sequence is the longest that really grows to its length, by single tokens and by
// pages; one token more doesn't.
TEST_F(SharedCacheTest, CaseA13_RoomSaysHowFarOneSequenceGets) {
  struct Shape {
    size_t layers;
    int window;  // of all layers but the last
  };
  // With many windows a sequence holds less once they have left the sinks behind.
  for (const auto [layers, window] : {Shape{2, 0}, {2, 40}, {2, 130}, {8, 40}, {8, 130}}) {
    for (uint64_t pages = 3; pages < 12; ++pages) {
      CacheOptions options;
      options.layers.resize(layers);
      for (CacheLayer& layer : options.layers) {
        layer.num_kv_heads = 1;
        layer.key_dim = layer.value_dim = 16;
        layer.formats = {"int8_token", layers == 2 ? "bf16" : "int8_token"};
      }
      for (size_t l = 0; l + 1 < layers; ++l) options.layers[l].window = window;
      options.max_bytes = layers == 2 ? pages * 8192 + 1000 : pages * 2048 + 44000;
      cache_ = std::move(KvCache::create(options, threads_).value());
      ASSERT_TRUE(cache_->room().sequence_tokens.has_value());
      const int64_t most = *cache_->room().sequence_tokens;
      ASSERT_LT(most, 5000);
      EXPECT_EQ(cache_->room().free_bytes, options.max_bytes);
      const std::vector<float> row(64 * 16, 0.5f);
      for (const int step : {1, 64}) {
        const SequenceId id = cache_->create_sequence().value();
        int64_t length = 0;
        while (true) {
          const StepItem item{
              id, static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(step, most - length)))};
          if (!cache_->begin_step({&item, 1}).ok()) break;
          for (int l = 0; l < static_cast<int>(layers); ++l)
            ASSERT_TRUE(cache_->append(l, row.data(), row.data()).ok());
          ASSERT_TRUE(cache_->end_step().ok());
          length += item.num_tokens;
          ASSERT_LE(cache_->usage().live_bytes, options.max_bytes);
          EXPECT_EQ(cache_->usage().live_bytes, cache_->bytes_at(length));
        }
        EXPECT_GE(length, most) << layers << " " << window << " " << pages;
        if (step == 1) {
          EXPECT_EQ(length, most) << layers << " " << window << " " << pages;
        }
        ASSERT_TRUE(cache_->release_sequence(id).ok());
      }
    }
  }
}

}  // namespace
}  // namespace kvant
