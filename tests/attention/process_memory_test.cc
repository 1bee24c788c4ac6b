// The memory of the process, as the system counts it, against what the pool says a cache takes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <vector>

#include "base/rng.h"
#include "base/threads.h"
#include "kvant/cache.h"

namespace kvant {
namespace {

// SmolLM2's cache.
constexpr int kLayers = 30, kHeads = 3, kGroup = 3, kDim = 64;
constexpr int kChunk = 512;
constexpr int64_t kWarm = 1024, kTokens = 8192;

double resident_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  file >> total >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

class ProcessMemory : public ::testing::TestWithParam<const char*> {};

TEST_P(ProcessMemory, GrowsByWhatTheFormatPromises) {
  ThreadPool threads(2);
  CacheOptions options;
  CacheLayer layer;
  layer.num_kv_heads = kHeads;
  layer.key_dim = layer.value_dim = kDim;
  layer.formats = *parse_format_pair(GetParam(), ModelTraits{});
  options.layers.assign(kLayers, layer);
  const auto created = KvCache::create(options, threads);
  ASSERT_TRUE(created.ok()) << created.status().message();
  KvCache& cache = **created;
  const SequenceId sequence = *cache.create_sequence();

  Rng rng(5);
  std::vector<float> rows(kChunk * kHeads * kDim), queries(kChunk * kHeads * kGroup * kDim);
  for (float& x : rows) x = rng.normal();
  for (float& x : queries) x = rng.normal();
  std::vector<float> out(queries.size());
  const AttentionParams params{.num_query_heads = kHeads * kGroup, .scale = 0.125f};
  const auto feed_up_to = [&](int64_t tokens) {
    while (*cache.length(sequence) < tokens) {
      const StepItem item{sequence, kChunk};
      ASSERT_TRUE(cache.begin_step({&item, 1}).ok());
      for (int l = 0; l < kLayers; ++l) {
        ASSERT_TRUE(cache.append(l, rows.data(), rows.data()).ok());
        if (l > 0) continue;  // one layer of attention is enough: all share their scratch
        ASSERT_TRUE(cache.attend(l, queries.data(), params, out.data()).ok());
      }
      ASSERT_TRUE(cache.end_step().ok());
    }
  };
  feed_up_to(kWarm);  // the workspace is as large as it gets
  const double resident = resident_bytes();
  const CacheUsage before = cache.usage();
  feed_up_to(kTokens);
  const CacheUsage after = cache.usage();
  const auto promised = static_cast<double>(after.live_bytes - before.live_bytes);
  const double grown = resident_bytes() - resident;
  EXPECT_NEAR(grown, promised, 0.03 * promised);
  EXPECT_LT(after.workspace_bytes, before.workspace_bytes + (256 << 10));
  std::printf("memory %-6s promised %.2f MB, grew %.2f MB, workspace %.2f MB\n", GetParam(),
              promised / 1e6, grown / 1e6, static_cast<double>(after.workspace_bytes) / 1e6);
}

INSTANTIATE_TEST_SUITE_P(Presets, ProcessMemory,
                         ::testing::Values("bf16", "int8", "k8v4", "int4", "int2"));

}  // namespace
}  // namespace kvant
