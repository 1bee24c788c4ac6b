// Statistics of keys and queries, against sums that are made one by one.
#include "calibrate/key_statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attention/forwarding_cache.h"
#include "base/float_types.h"
#include "base/rng.h"

namespace kvant {
namespace {

std::filesystem::path tiny(const char* name) {
  return std::filesystem::path(KVANT_TEST_DATA) / "models" / name;
}

std::vector<int32_t> tokens(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> out(n);
  for (int32_t& t : out) t = static_cast<int32_t>(rng.below(288));
  return out;
}

std::vector<LayerMoments> statistics(const char* name, int num_threads, int chunk) {
  ThreadPool threads(num_threads);
  const auto model = Model::load(tiny(name), {}, threads);
  EXPECT_TRUE(model.ok()) << model.status().message();
  KeyStatistics sums((*model)->info(), threads);
  for (const auto& [length, seed] : {std::pair{300u, 1u}, {130u, 2u}, {63u, 3u}})
    EXPECT_TRUE(sums.add(**model, tokens(length, seed), chunk).ok());
  return {sums.layers().begin(), sums.layers().end()};
}

TEST(KeyStatistics, NeitherThreadsNorChunksMatter) {
  const std::vector<LayerMoments> want = statistics("llama", 1, 512);
  for (const auto& [threads, chunk] : {std::pair{2, 512}, {1, 64}, {2, 128}}) {
    const std::vector<LayerMoments> got = statistics("llama", threads, chunk);
    ASSERT_EQ(got.size(), want.size());
    for (size_t l = 0; l < got.size(); ++l) {
      ASSERT_EQ(got[l].heads.size(), want[l].heads.size());
      for (size_t h = 0; h < got[l].heads.size(); ++h) {
        EXPECT_EQ(got[l].heads[h].query, want[l].heads[h].query);
        EXPECT_EQ(got[l].heads[h].key, want[l].heads[h].key);
        EXPECT_EQ(got[l].heads[h].num_keys, want[l].heads[h].num_keys);
      }
    }
  }
}

// Pages 1 to 3 of the first document and page 1 of the second are whole and not the first.
TEST(KeyStatistics, FirstAndOpenPagesDontCount) {
  for (const LayerMoments& layer : statistics("llama", 2, 128)) {
    for (const HeadMoments& head : layer.heads) {
      EXPECT_EQ(head.num_keys, 4 * kPageTokens);
      EXPECT_EQ(head.num_queries % 493, 0);
    }
  }
}

// Keeps the rows of one layer.
class KeepingCache final : public ForwardingCache {
 public:
  using ForwardingCache::ForwardingCache;
  Status append(int layer, const float* k, const float* v, const float* k_pre_rope) override {
    if (layer == 1) k_.assign(k, k + kTokens * row(options().layers[1].num_kv_heads));
    return ForwardingCache::append(layer, k, v, k_pre_rope);
  }
  Status attend(int layer, const float* q, const AttentionParams& params, float* out,
                PageMass* mass) override {
    KVANT_TRY(ForwardingCache::attend(layer, q, params, out, layer == 1 ? &mass_ : mass));
    if (layer == 1) q_.assign(q, q + kTokens * row(params.num_query_heads));
    return {};
  }
  size_t row(int heads) const {
    return static_cast<size_t>(heads) * static_cast<size_t>(options().layers[1].key_dim);
  }
  static constexpr size_t kTokens = 256;
  std::vector<float> k_, q_;
  PageMass mass_;
};

TEST(KeyStatistics, AreTheSumsOfWhatTheCacheIsGiven) {
  ThreadPool threads(1);
  const auto model = Model::load(tiny("llama"), {}, threads);
  const std::vector<int32_t> text = tokens(KeepingCache::kTokens, 7);
  KeyStatistics sums((*model)->info(), threads);
  ASSERT_TRUE(sums.add(**model, text, 256).ok());

  CacheOptions options;
  options.layers = (*model)->info().cache_layers;
  const auto cache = KvCache::create(options, threads);
  KeepingCache keeping(**cache);
  const ForwardItem item{(*cache)->create_sequence().value(), text};
  std::vector<float> hidden(KeepingCache::kTokens *
                            static_cast<size_t>((*model)->info().hidden_size));
  ASSERT_TRUE((*model)->forward(keeping, {&item, 1}, hidden.data()).ok());

  const LayerMoments& got = sums.layers()[1];
  const auto dim = static_cast<size_t>(got.dim);
  const size_t kv_heads = got.heads.size();
  const size_t query_heads = static_cast<size_t>((*model)->info().num_query_heads);
  const size_t group = query_heads / kv_heads;
  const size_t head = 1;
  const auto key = [&](size_t t, size_t i) {
    return double{bf16_to_f32(f32_to_bf16(keeping.k_[(t * kv_heads + head) * dim + i]))};
  };
  for (size_t i = 0; i < dim; i += 3) {
    for (size_t j = 0; j <= i; j += 2) {
      double keys = 0, queries = 0;
      for (size_t page = 64; page < KeepingCache::kTokens; page += 64) {
        double mean_i = 0, mean_j = 0;
        for (size_t t = page; t < page + 64; ++t)
          mean_i += key(t, i) / 64, mean_j += key(t, j) / 64;
        for (size_t t = page; t < page + 64; ++t)
          keys += (key(t, i) - mean_i) * (key(t, j) - mean_j);
      }
      for (size_t t = 0; t < KeepingCache::kTokens; ++t) {
        for (size_t q = head * group; q < (head + 1) * group; ++q) {
          const float* row = keeping.q_.data() + (t * query_heads + q) * dim;
          const float* mass = keeping.mass_.mass.data() + (t * query_heads + q) * 4;
          double weight = 0;  // of pages between the first and the query's own
          for (size_t page = 1; page < t / 64; ++page) weight += std::pow(double{mass[page]}, 2);
          queries += weight * double{row[i]} * double{row[j]};
        }
      }
      EXPECT_NEAR(got.heads[head].key[i * dim + j], keys, 1e-9 * (1 + std::fabs(keys)));
      EXPECT_NEAR(got.heads[head].query[i * dim + j], queries, 1e-9 * (1 + std::fabs(queries)));
    }
  }
}

TEST(KeyStatistics, ChunksThatCutPagesAreRefused) {
  ThreadPool threads(1);
  const auto model = Model::load(tiny("llama"), {}, threads);
  KeyStatistics sums((*model)->info(), threads);
  EXPECT_THAT(sums.add(**model, tokens(10, 1), 100).message(),
              testing::HasSubstr("chunks of 100 tokens, wanted a multiple of 64"));
}

}  // namespace
}  // namespace kvant
