// Kvant's cache without a model: two sequences over a quantized, paged KV cache.
//
//   cache_example [FORMAT]        FORMAT: what K and V are stored as, `int8_token/int4_token_z_rot`
//   if not given
//
// It creates a cache for a model of four layers, appends 500 random tokens, attends with them,
// branches the sequence at token 480, gives each branch tokens of its own, and prints what the
// cache holds. Random rows stand for what a model's projections would compute.
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kvant/cache.h"

namespace {

using kvant::KvCache;
using kvant::SequenceId;
using kvant::Status;
using kvant::StepItem;

constexpr int kLayers = 4;
constexpr int kQueryHeads = 8;
constexpr int kKvHeads = 2;  // grouped queries: four query heads read one KV head
constexpr int kHeadDim = 64;

std::vector<float> random_rows(std::mt19937& rng, int num_rows, int width) {
  std::vector<float> rows(static_cast<size_t>(num_rows) * static_cast<size_t>(width));
  std::normal_distribution<float> normal;
  for (float& x : rows) x = normal(rng);
  return rows;
}

// One step: every layer appends its K and V, then attends. A failure leaves the sequences as they
// were.
Status run_step(KvCache& cache, const std::vector<StepItem>& batch, std::mt19937& rng) {
  int num_rows = 0;
  for (const StepItem& item : batch) num_rows += item.num_tokens;
  KVANT_TRY(cache.begin_step(batch));
  const kvant::AttentionParams params{.num_query_heads = kQueryHeads,
                                      .scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim))};
  std::vector<float> out(static_cast<size_t>(num_rows * kQueryHeads * kHeadDim));
  for (int layer = 0; layer < kLayers; ++layer) {
    // Heads lie side by side within a token's row.
    const std::vector<float> k = random_rows(rng, num_rows, kKvHeads * kHeadDim);
    const std::vector<float> v = random_rows(rng, num_rows, kKvHeads * kHeadDim);
    const std::vector<float> q = random_rows(rng, num_rows, kQueryHeads * kHeadDim);
    Status status = cache.append(layer, k.data(), v.data());
    if (status.ok()) status = cache.attend(layer, q.data(), params, out.data());
    if (!status.ok()) {
      cache.abort_step();
      return status;
    }
  }
  return cache.end_step();
}

void print_usage(const char* when, const KvCache& cache) {
  const kvant::CacheUsage usage = cache.usage();
  std::printf("%-28s sealed %7.1f KiB   exact %7.1f KiB   the same in bf16 %7.1f KiB\n", when,
              static_cast<double>(usage.sealed_bytes) / 1024,
              static_cast<double>(usage.exact_bytes) / 1024,
              static_cast<double>(usage.ideal_bytes) / 1024);
}

Status run(const std::string& format) {
  // A format for K and one for V, checked and, if it is a preset, expanded.
  KVANT_ASSIGN(const kvant::FormatPair formats, kvant::parse_format_pair(format, {}));
  kvant::CacheOptions options;
  for (int layer = 0; layer < kLayers; ++layer) {
    kvant::CacheLayer shape;
    shape.num_kv_heads = kKvHeads;
    shape.key_dim = shape.value_dim = kHeadDim;
    shape.formats = formats;
    options.layers.push_back(shape);
  }

  // What it will take, before anything runs.
  const int64_t length[] = {500};
  KVANT_ASSIGN(const kvant::CachePlan plan, kvant::plan_cache(options, length));
  std::printf(
      "%s: K %.3f and V %.3f bits per value once sealed, %.3f at 500 tokens (one page stays "
      "exact)\n",
      formats.name().c_str(), plan.sealed_bits_key, plan.sealed_bits_value, plan.effective_bits);

  KVANT_ASSIGN(const std::unique_ptr<KvCache> cache, KvCache::create(options, /*num_threads=*/0));
  std::mt19937 rng(1);

  // A prompt in one step; any other chunking would give the same bits.
  KVANT_ASSIGN(const SequenceId first, cache->create_sequence());
  KVANT_TRY(run_step(*cache, {{first, 500}}, rng));
  print_usage("500 tokens:", *cache);

  // A branch shares every page until it writes. Token 480 lies in the open page, which is exact; a
  // cut inside a sealed page would go back to that page's start, and `kept` would say so.
  KVANT_ASSIGN(const KvCache::Fork fork, cache->fork(first, 480));
  std::printf("branched at token %lld\n", static_cast<long long>(fork.rollback.kept));
  print_usage("the branch shares all pages:", *cache);

  // Both go on in the same steps.
  for (int step = 0; step < 20; ++step) {
    KVANT_TRY(run_step(*cache, {{first, 1}, {fork.sequence, 1}}, rng));
  }
  print_usage("after 20 tokens each:", *cache);

  KVANT_TRY(cache->release_sequence(first));
  KVANT_TRY(cache->release_sequence(fork.sequence));
  print_usage("both released:", *cache);
  return cache->check_invariants();
}

}  // namespace

int main(int argc, char** argv) {
  const Status status = run(argc > 1 ? argv[1] : "int8_token/int4_token_z_rot");
  if (status.ok()) return 0;
  std::fprintf(stderr, "cache_example: %s\n", status.message().c_str());
  return kvant::exit_code(status.code());
}
