// Every registered format in the cache: the same bits however tokens arrive, and the reference's
// values.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cache_world.h"
#include "formats/tested_formats.h"

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
  result.layer.key_artifacts = any_artifacts(info, heads, dim);
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
INSTANTIATE_TEST_SUITE_P(Registry, EveryFormat, testing::ValuesIn(tested_formats()),
                         parameter_name);

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

// Rows that the cache stands for, as the query after `tokens` tokens sees them.
LayerRows held_rows(CacheWorld& world, SequenceId id, int64_t tokens) {
  const CacheLayer& l = world.options().cache.layers[0];
  LayerRows rows;
  rows.k.resize(static_cast<size_t>(tokens * l.num_kv_heads * l.key_dim));
  rows.v.resize(static_cast<size_t>(tokens * l.num_kv_heads * l.value_dim));
  const Status status = world.cache().read(id, 0, 0, tokens, tokens, rows.k.data(), rows.v.data());
  EXPECT_TRUE(status.ok()) << status.message();
  return rows;
}

// Tokens age by their position: the same pages, of the same size, however they arrive. Generated
// tokens are quantized like those of a prompt, whole pages at a time, and what stays exact beyond
// the sinks is the open page.
TEST_P(EveryFormat, CaseB9_TokensAgeByTheirPosition) {
  constexpr int64_t kTokens = 300;
  const FormatLayer one = usual_layer(1);
  const auto width = static_cast<size_t>(one.layer.key_dim);
  const LayerRows given = CacheWorld({.cache = {.layers = {one.layer}}}).rows(1, 0, 0, kTokens);
  LayerRows first;
  CacheUsage usage;
  std::vector<int> decode_after_4(kTokens, 1), decode_after_71(kTokens, 1);
  decode_after_4[0] = 4;
  decode_after_71[0] = 71;
  for (const std::vector<int>& chunks : {{300}, decode_after_4, decode_after_71, {5, 5, 14}}) {
    CacheWorld world({.cache = {.layers = {one.layer}}});
    world.attends = false;
    const SequenceId id = world.new_sequence();
    world.feed(id, 1, kTokens, chunks);
    const LayerRows rows = held_rows(world, id, kTokens);
    if (first.k.empty()) {
      first = rows;
      usage = world.cache().usage();
    }
    EXPECT_EQ(rows.k, first.k);
    EXPECT_EQ(rows.v, first.v);
    EXPECT_EQ(world.cache().usage().sealed_bytes, usage.sealed_bytes);
    EXPECT_EQ(world.cache().usage().exact_bytes, usage.exact_bytes);
  }
  const auto differs = [&](const std::vector<float>& a, const std::vector<float>& b, size_t page) {
    const size_t begin = page * kPageTokens * width, end = std::min(begin + 64 * width, a.size());
    double most = 0;
    for (size_t i = begin; i < end; ++i) most = std::max(most, double{std::fabs(a[i] - b[i])});
    return most > 0.01;  // bf16 rounds these rows by less
  };
  const bool quantizes_keys = !find_format(one.layer.formats.key).value()->exact;
  for (size_t page = 0; page < 5; ++page) {
    const bool sealed = page >= 1 && page < 4;
    EXPECT_EQ(differs(first.k, given.k, page), sealed && quantizes_keys) << "page " << page;
  }
  const bool seals = !info().exact;
  EXPECT_EQ(usage.sealed_bytes > 0, seals);
  if (seals) {
    CacheWorld two_pages({.cache = {.layers = {one.layer}}});
    two_pages.attends = false;
    two_pages.feed(two_pages.new_sequence(), 1, 65, {65});
    EXPECT_EQ(usage.exact_bytes, two_pages.cache().usage().exact_bytes) << "sink and open page";
  }
}

// What is kept of a longer sequence, by a fork or a cut, serves the rest of a text like a cold run:
// the same bits, and exactly the tokens before the last page start.
TEST_P(EveryFormat, CaseC1_CaseC17_AKeptPrefixEqualsAColdRun) {
  constexpr int64_t kTokens = 193;
  const FormatLayer one = usual_layer(1);
  const CacheOptions options = {.layers = {one.layer}, .sinks = 0};
  CacheWorld world({.cache = options, .fill = 0x7f});
  const SequenceId root = world.new_sequence();
  const Outputs cold = world.feed(root, 3, kTokens, {193});
  for (const int64_t shared : {192, 129, 128, 65, 63}) {
    const KvCache::Fork fork = world.cache().fork(root, shared).value();
    const int64_t kept = info().exact || shared == 192 ? shared : shared / 64 * 64;
    EXPECT_EQ(fork.rollback.kept, kept);
    const Outputs hit = world.feed(fork.sequence, 3, kTokens, {static_cast<int>(kTokens)});
    EXPECT_TRUE(same_bits(hit, slice(cold, kept, kTokens, kTokens))) << shared;
    EXPECT_EQ(world.cache().truncate(fork.sequence, shared)->kept, kept);
    const Outputs again = world.feed(fork.sequence, 3, kTokens, {1});
    EXPECT_TRUE(same_bits(again, slice(cold, kept, kTokens, kTokens))) << shared << " one by one";
    ASSERT_TRUE(world.cache().release_sequence(fork.sequence).ok());
  }
  expect_invariants(world);
}

// Infinity is no number to saturate, and NaN none to store: the step fails with the place, and the
// sequence goes on as if it had never been.
TEST_P(EveryFormat, CaseB5_NanAndInfinityFailTheStep) {
  const FormatLayer one = usual_layer(2);
  CacheWorld world({.cache = {.layers = {one.layer, one.layer}}});
  const SequenceId id = world.new_sequence();
  world.feed(id, 1, 70, {70});
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    for (const Side side : {Side::kKey, Side::kValue}) {
      const StepItem item{id, 3};
      ASSERT_TRUE(world.cache().begin_step({&item, 1}).ok());
      const LayerRows good = world.rows(1, 0, 70, 73);
      ASSERT_TRUE(world.cache().append(0, good.k.data(), good.v.data()).ok());
      LayerRows rows = world.rows(1, 1, 70, 73);
      const auto width = static_cast<size_t>(one.layer.key_dim);
      (side == Side::kKey ? rows.k : rows.v)[(2 + 1) * width + 5] = bad;
      const Status status = world.cache().append(1, rows.k.data(), rows.v.data());
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_EQ(status.message(), "layer 1: " + std::string(side_name(side)) + " of sequence " +
                                      std::to_string(id) +
                                      " at position 71, head 1, channel 5 is " +
                                      std::to_string(bad) + "; wanted a finite number");
      world.cache().abort_step();
      EXPECT_EQ(world.length(id), 70);
    }
  }
  expect_invariants(world);
  CacheWorld fresh({.cache = world.options().cache});
  const Outputs expected = fresh.feed(fresh.new_sequence(), 1, 75, {75});
  EXPECT_TRUE(same_bits(world.feed(id, 1, 75, {5}), slice(expected, 70, 75, 75)));
}

// Integer arithmetic on both products may add a little to the arithmetic on the same codes
// (docs/numerics.md).
TEST_P(EveryFormat, EqualsTheReferenceOnItsOwnRows) {
  const FormatLayer one = usual_layer(1);
  CacheWorld world({.cache = {.layers = {one.layer}}, .group = 3});
  world.after_attend = [&](int layer, const auto& feeds, const auto& begins, const auto& outputs) {
    EXPECT_LT(reference_error(world, feeds[0], begins[0], layer, outputs[0][0]),
              info().exact ? 2e-6 : kernel_bound(one.layer.formats));
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
// is refused, as the registry says it is. The heads change with the width; usual widths of
// formats that have a read path of their own see three times as many cells. Slow builds see one
// cell of a width, and of the widths the least, one with a rest, one that is refused, the usual one
// and the most.
TEST_P(EveryFormat, CaseB13_EveryShapeIsServedOrRefused) {
  struct Heads {
    int kv, ratio;
  };
  const Heads heads[] = {{1, 1}, {2, 4}, {3, 8}, {1, 4}, {2, 1}, {3, 1}, {1, 8}, {2, 8}, {3, 4}};
  const bool reads_alone = info().layout == info().name;
  size_t first = std::hash<std::string>{}(GetParam());
  for (const int dim : kSlowBuild ? std::vector<int>{16, 80, 100, 128, 512}
                                  : std::vector<int>{16, 64, 80, 96, 100, 128, 192, 256, 512}) {
    ++first;  // other heads for every width
    const bool usual = !kSlowBuild && (dim == 64 || dim == 80 || dim == 128);
    const size_t step = reads_alone && usual ? 3 : 9;
    for (size_t i = first % step; i < std::size(heads); i += step) {
      const Heads h = heads[i];
      SCOPED_TRACE(testing::Message()
                   << dim << " wide, " << h.kv << " KV heads, ratio " << h.ratio);
      const FormatLayer one = layer_of(info(), h.kv, dim);
      const FormatPair& formats = one.layer.formats;
      EXPECT_EQ(one.usable, sealed_bits(**find_format(formats.key), Side::kKey, dim).ok() &&
                                sealed_bits(**find_format(formats.value), Side::kValue, dim).ok());
      if (!one.usable) continue;
      CacheWorld world({.cache = {.layers = {one.layer}, .sinks = 0}, .group = h.ratio});
      world.after_attend = [&](int layer, const auto& feeds, const auto& begins,
                               const auto& outputs) {
        EXPECT_LT(reference_error(world, feeds[0], begins[0], layer, outputs[0][0]),
                  kernel_bound(one.layer.formats));
      };
      const SequenceId id = world.new_sequence();
      world.attends = false;
      world.feed(id, 3, 64, {64});
      world.attends = true;
      world.feed(id, 3, 67, {2, 1});
    }
  }
}

// Case B8: no byte outside the valid tokens influences a result. Pools full of FP8's NaN, of ones,
// and of zeros.
TEST_P(EveryFormat, CaseB8_WhatUnwrittenSlotsHoldNeverMatters) {
  const FormatLayer one = usual_layer(1);
  CacheOptions options = {.layers = {one.layer, one.layer}, .sinks = 0};
  options.layers[1].window = 30;
  Outputs first;
  for (const int fill : {0x00, 0x7f, 0xff}) {
    CacheWorld world({.cache = options, .fill = fill});
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
