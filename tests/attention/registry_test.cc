// Every registered format in the cache: the same bits however tokens arrive, and the reference's
// values.
#include <algorithm>

#include "cache_world.h"

namespace kvant::test {
namespace {

// A layer that has the format on both sides, or beside bf16 where it serves one; nothing where it
// can't have the width.
struct FormatLayer {
  bool usable = false;
  CacheLayer layer;
};
FormatLayer layer_of(const FormatInfo& info, int heads, int dim) {
  FormatLayer result;
  result.layer = make_layer(info.for_keys ? info.name : "bf16",
                            info.for_values ? info.name : "bf16", 0, heads, dim, dim);
  if (info.scale_source == ScaleSource::kGiven)
    result.layer.key_scale = result.layer.value_scale = 0.05f;
  ThreadPool threads(1);
  CacheOptions options;
  options.layers = {result.layer};
  const auto cache = KvCache::create(options, threads);
  result.usable = cache.ok();
  if (!cache.ok()) {
    EXPECT_EQ(cache.status().code(), Code::kUnsupported)
        << info.name << ": " << cache.status().message();
  }
  return result;
}

std::string parameter_name(const testing::TestParamInfo<std::string>& info) { return info.param; }
std::vector<std::string> registry() {
  std::vector<std::string> names;
  for (const FormatInfo& info : all_formats()) names.push_back(info.name);
  return names;
}

class EveryFormat : public testing::TestWithParam<std::string> {
 protected:
  const FormatInfo& info() const { return *find_format(GetParam()).value(); }
  // The narrowest head of a usual size that the format's groups divide.
  FormatLayer usual_layer(int heads) const {
    FormatLayer layer = layer_of(info(), heads, std::max(64, info().group));
    EXPECT_TRUE(layer.usable);
    return layer;
  }
};
INSTANTIATE_TEST_SUITE_P(Registry, EveryFormat, testing::ValuesIn(registry()), parameter_name);

// E6. One call of everything on one thread; 64 at a time and then one by one on two; 128 at a time
// in a batch of nine sequences of other lengths on five.
TEST_P(EveryFormat, ChunksBatchesAndThreadsDontChangeABit) {
  const FormatLayer one = usual_layer(1);
  CacheOptions options;
  options.layers = {one.layer, one.layer};
  options.layers[1].window = 80;
  options.sinks = 0;
  constexpr int64_t kTokens = 140;

  CacheWorld alone({.cache = options, .threads = 1});
  const Outputs whole = alone.feed(alone.new_sequence(), 7, kTokens, {kTokens});

  CacheWorld slow({.cache = options, .threads = 2});
  const SequenceId id = slow.new_sequence();
  Outputs bits = slow.feed(id, 7, 128, {64});
  append_outputs(bits, slow.feed(id, 7, kTokens, {1}));
  EXPECT_TRUE(same_bits(bits, whole)) << "chunks of 64, then 1";

  CacheWorld batch({.cache = options, .threads = 5});
  std::vector<SequenceId> ids;
  for (int i = 0; i < 9; ++i) ids.push_back(batch.new_sequence());
  Outputs in_batch(2);
  while (batch.length(ids[4]) < kTokens) {
    std::vector<Feed> feeds;
    for (size_t i = 0; i < ids.size(); ++i) {
      const int size =
          i == 4 ? static_cast<int>(std::min<int64_t>(128, kTokens - batch.length(ids[4])))
                 : static_cast<int>(1 + i * 9);
      feeds.push_back({ids[i], i == 4 ? 7 : 100 + i, size});
    }
    append_outputs(in_batch, batch.step(feeds)[4]);
  }
  EXPECT_TRUE(same_bits(in_batch, whole)) << "in a batch of 9, chunks of 128";
  EXPECT_TRUE(batch.cache().check_invariants().ok());
}

// Integer arithmetic on both products may add a little to the arithmetic on the same codes
// (docs/numerics.md).
TEST_P(EveryFormat, EqualsTheReferenceOnItsOwnRows) {
  const FormatLayer one = usual_layer(1);
  CacheWorld world({.cache = {.layers = {one.layer}}, .group = 3});
  world.after_attend = [&](int layer, const auto& feeds, const auto& begins, const auto& outputs) {
    EXPECT_LT(reference_error(world, feeds[0], begins[0], layer, outputs[0][0]),
              info().exact ? 2e-6 : 1e-3);
  };
  const SequenceId id = world.new_sequence();
  world.attends = false;
  world.feed(id, 3, 192, {192});
  world.attends = true;
  world.feed(id, 3, 210, {10, 1});
}

TEST_P(EveryFormat, ThePlanIsThePoolsOwnCountToTheByte) {
  const FormatLayer one = usual_layer(2);
  struct Case {
    int window, exact_window, sinks;
  };
  for (const Case& c : {Case{0, 0, 64}, Case{100, 0, 0}, Case{0, 64, 128}, Case{100, 64, 64}}) {
    CacheOptions options;
    options.layers = {one.layer, one.layer};
    options.layers[1].window = c.window;
    options.sinks = c.sinks;
    options.exact_window = c.exact_window;
    CacheWorld world({.cache = options});
    world.attends = false;
    const SequenceId ids[] = {world.new_sequence(), world.new_sequence()};
    for (const int tokens : {64, 135}) {
      world.step({{ids[0], 1, tokens}, {ids[1], 2, 1}});
      const std::vector<int64_t> lengths = {world.length(ids[0]), world.length(ids[1])};
      const CachePlan plan = plan_cache(options, lengths).value();
      const CacheUsage usage = world.cache().usage();
      EXPECT_EQ(plan.sealed_bytes, usage.sealed_bytes) << c.window << " " << c.exact_window;
      EXPECT_EQ(plan.exact_bytes, usage.exact_bytes) << c.window << " " << c.exact_window;
      EXPECT_EQ(usage.live_bytes, plan.total_bytes());
    }
  }
}

TEST_P(EveryFormat, ThePlanBillsSealedBitsAsTheRegistryDoes) {
  const FormatLayer one = usual_layer(2);
  CacheOptions options;
  options.layers = {one.layer};
  const int64_t length[] = {64 * 1000};
  const CachePlan plan = plan_cache(options, length).value();
  const FormatInfo& key = *find_format(one.layer.formats.key).value();
  const FormatInfo& value = *find_format(one.layer.formats.value).value();
  EXPECT_DOUBLE_EQ(plan.sealed_bits_key, sealed_bits(key, Side::kKey, one.layer.key_dim).value());
  EXPECT_DOUBLE_EQ(plan.sealed_bits_value,
                   sealed_bits(value, Side::kValue, one.layer.value_dim).value());
  EXPECT_NEAR(plan.effective_bits, (plan.sealed_bits_key + plan.sealed_bits_value) / 2, 0.02);
}

// Case B13: the output buffer starts as a sentinel; each cell of the matrix equals the reference or
// is refused.
TEST_P(EveryFormat, CaseB13_EveryShapeIsServedOrRefused) {
  struct Heads {
    int kv, ratio;
  };
  const Heads heads[] = {{1, 1}, {2, 4}, {3, 8}, {1, 4}, {2, 1}, {3, 1}, {1, 8}, {2, 8}, {3, 4}};
  size_t next = std::hash<std::string>{}(GetParam()) % std::size(heads);
  for (const int dim : {16, 64, 80, 96, 100, 128, 192, 256}) {
    const Heads h = heads[next++ % std::size(heads)];
    const FormatLayer one = layer_of(info(), h.kv, dim);
    if (!one.usable) continue;
    CacheWorld world({.cache = {.layers = {one.layer}, .sinks = 0}, .group = h.ratio});
    world.after_attend = [&](int layer, const auto& feeds, const auto& begins,
                             const auto& outputs) {
      EXPECT_LT(reference_error(world, feeds[0], begins[0], layer, outputs[0][0]), 1e-3)
          << dim << " wide, " << h.kv << " KV heads, ratio " << h.ratio;
    };
    const SequenceId id = world.new_sequence();
    world.attends = false;
    world.feed(id, 3, 64, {64});
    world.attends = true;
    world.feed(id, 3, 67, {2, 1});
  }
}

// Case B8: no byte outside the valid tokens influences a result. Pools full of FP8's NaN, of ones,
// and of zeros.
TEST_P(EveryFormat, CaseB8_WhatUnwrittenSlotsHoldNeverMatters) {
  const FormatLayer one = usual_layer(1);
  Outputs first;
  for (const int fill : {0x00, 0x7f, 0xff}) {
    CacheWorld world({.cache = {.layers = {one.layer}, .sinks = 0}, .fill = fill});
    const SequenceId used = world.new_sequence();
    world.feed(used, 9, 70, {35});
    ASSERT_TRUE(world.cache().release_sequence(used).ok());
    const Outputs out = world.feed(world.new_sequence(), 3, 69, {5, 62, 1});
    if (first.empty()) first = out;
    EXPECT_TRUE(same_bits(out, first)) << fill;
  }
}

}  // namespace
}  // namespace kvant::test
