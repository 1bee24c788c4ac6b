// What a cache holds and what its queries see over time: windows, recycled pages, saturated pools,
// shared layers, sizes. Cases B8 to C11 of the list of inputs that broke other systems; the page is
// 64 tokens here, so their numbers are scaled up.
#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "cache_world.h"

namespace kvant::test {
namespace {

// Every chunking of a sliding layer equals the reference and every other chunking, and the pool
// keeps its window only.
TEST(CacheCases, CaseC11_EachQuerySeesExactlyItsWindow) {
  for (const FormatPair& formats : {kFewPairs[0], kFewPairs[4]}) {
    for (const int window : {1, 8, 63, 64, 65, 100, 128}) {
      Outputs first;
      for (const std::vector<int>& chunks : std::vector<std::vector<int>>{{220}, {64, 1}, {3, 5}}) {
        CacheWorld world({.cache = layers_of(formats, {window})});
        world.after_attend = [&](int layer, const auto& feeds, const auto& begins,
                                 const auto& outputs) {
          EXPECT_LT(reference_error(world, feeds[0], begins[0], layer, outputs[0][0]),
                    kernel_bound(formats))
              << formats.name() << " window " << window;
        };
        const SequenceId id = world.new_sequence();
        const Outputs out = world.feed(id, 1, 220, chunks);
        if (first.empty()) first = out;
        EXPECT_TRUE(same_bits(out, first))
            << formats.name() << " window " << window << " chunk " << chunks[0];
        expect_invariants(world);
      }
    }
  }
}

TEST(CacheCases, CaseC11_LengthsAroundTheWindow) {
  for (int length = 6; length <= 12; ++length) {
    Outputs first;
    for (const int chunk : {1, 3, 5}) {
      CacheWorld world({.cache = layers_of({"f32", "f32"}, {8})});
      world.after_attend = [&](int layer, const auto& feeds, const auto& begins,
                               const auto& outputs) {
        EXPECT_LT(reference_error(world, feeds[0], begins[0], layer, outputs[0][0]), 2e-6)
            << length;
      };
      const Outputs out = world.feed(world.new_sequence(), 1, length, {chunk});
      if (first.empty()) first = out;
      EXPECT_TRUE(same_bits(out, first)) << length << " in chunks of " << chunk;
    }
  }
}

TEST(CacheCases, ASlidingLayerHoldsItsWindowOnly) {
  CacheWorld world({.cache = layers_of({"int8_token", "int8_token"}, {100})});
  world.attends = false;
  const SequenceId id = world.new_sequence();
  world.feed(id, 1, 300, {64});
  const uint64_t at_300 = world.cache().usage().live_bytes;
  world.feed(id, 1, 300 + 64 * 20, {64, 256});
  EXPECT_EQ(world.cache().usage().live_bytes, at_300);
}

// Pages that the sliding layer frees are taken by the quantized one, with what they held.
TEST(CacheCases, CaseC6_RecycledPagesOfASlidingLayerDontReachOthers) {
  CacheOptions options = layers_of({"fp8_e4m3", "fp8_e4m3"}, {8, 0});
  options.layers[0].formats = {"bf16", "bf16"};
  const Outputs fresh = solo(options, 5, 200);
  CacheWorld world({.cache = options, .fill = 0x7f});
  for (int round = 0; round < 3; ++round) {
    const SequenceId id = world.new_sequence();
    const Outputs out = world.feed(id, 5, 200, {40, 1});
    EXPECT_TRUE(same_bits(out, fresh)) << "round " << round;
    for (const std::vector<float>& layer : out) {
      EXPECT_TRUE(
          std::all_of(layer.begin(), layer.end(), [](float x) { return std::isfinite(x); }));
    }
    ASSERT_TRUE(world.cache().release_sequence(id).ok());
  }
  EXPECT_EQ(world.cache().usage().live_bytes, 0u);
}

// Six sequences on a pool that is nearly always full, stopped and started at random: each output is
// its solo run's.
TEST(CacheCases, CaseC4_ASaturatedPoolNeverMixesSequences) {
  constexpr int64_t kTokens = 260;
  for (const FormatPair& formats : kFewPairs) {
    CacheOptions options = layers_of(formats, {0, 90});
    std::vector<Outputs> expected;
    for (uint64_t stream = 0; stream < 6; ++stream)
      expected.push_back(solo(options, stream, kTokens));
    const int64_t two[] = {kTokens, kTokens};
    options.max_bytes = plan_cache(options, two).value().total_bytes() + 4096;
    for (uint64_t seed = 0; seed < 2; ++seed) {
      SCOPED_TRACE(formats.name() + " seed " + std::to_string(seed));
      Rng rng(seed);
      CacheWorld world({.cache = options, .threads = 2, .fill = 0x7f});
      std::vector<SequenceId> ids;
      for (int i = 0; i < 6; ++i) ids.push_back(world.new_sequence());
      int refused = 0;
      for (int round = 0; round < 100; ++round) {
        std::vector<Feed> feeds;
        for (size_t i = 0; i < ids.size(); ++i) {
          const int64_t left = kTokens - world.length(ids[i]);
          const int sizes[] = {1, 17, 64, 100};
          if (left > 0 && rng.below(3) == 0) {
            feeds.push_back(
                {ids[i], i, static_cast<int>(std::min<int64_t>(left, sizes[rng.below(4)]))});
          }
        }
        if (feeds.empty()) continue;
        std::vector<int64_t> begins;
        for (const Feed& feed : feeds) begins.push_back(world.length(feed.sequence));
        std::vector<Outputs> outputs;
        const Status status = world.try_step(feeds, &outputs);
        expect_invariants(world);
        if (!status.ok()) {
          ASSERT_EQ(status.code(), Code::kExhausted) << status.message();
          ++refused;
          const size_t stopped = rng.below(ids.size());
          ASSERT_TRUE(world.cache().release_sequence(ids[stopped]).ok());
          ids[stopped] = world.new_sequence();
          continue;
        }
        for (size_t i = 0; i < feeds.size(); ++i) {
          const int64_t end = begins[i] + feeds[i].num_tokens;
          ASSERT_TRUE(
              same_bits(outputs[i], slice(expected[feeds[i].stream], begins[i], end, kTokens)))
              << round;
        }
      }
      EXPECT_GT(refused, 3) << "the pool should have been full";
    }
  }
}

TEST(CacheCases, AnExactWindowKeepsItsPagesExact) {
  CacheOptions options = layers_of({"int4_token_z_rot", "int4_token_z_rot"}, {0});
  options.exact_window = 128;
  CacheWorld world({.cache = options});
  world.after_attend = [&](int layer, const auto& feeds, const auto& begins, const auto& outputs) {
    EXPECT_LT(reference_error(world, feeds[0], begins[0], layer, outputs[0][0]),
              kernel_bound(options.layers[0].formats));
  };
  const SequenceId id = world.new_sequence();
  world.feed(id, 1, 400, {150, 64, 1, 7});
  std::vector<float> k(400 * 32), v(400 * 32);
  ASSERT_TRUE(world.cache().read(id, 0, 0, 400, 400, k.data(), v.data()).ok());
  CacheWorld exact({.cache = layers_of({"bf16", "bf16"}, {0})});
  const SequenceId same = exact.new_sequence();
  exact.feed(same, 1, 400, {400});
  std::vector<float> exact_k(400 * 32), exact_v(400 * 32);
  ASSERT_TRUE(exact.cache().read(same, 0, 0, 400, 400, exact_k.data(), exact_v.data()).ok());
  for (int64_t page = 0; page < 6; ++page) {
    const bool equal = std::equal(k.begin() + page * 2048, k.begin() + (page + 1) * 2048,
                                  exact_k.begin() + page * 2048);
    EXPECT_EQ(equal, page == 0 || page >= 4) << "page " << page;
  }
}

TEST(CacheCases, AStaticCacheServesItsLengthAndNoMore) {
  for (const FormatPair& formats : kFewPairs) {
    CacheOptions options = layers_of(formats, {0, 90});
    options.preallocate_tokens = 1000;
    CacheWorld world({.cache = options});
    world.attends = false;
    const uint64_t reserved = world.cache().usage().reserved_bytes;
    EXPECT_GT(reserved, 0u);
    const SequenceId id = world.new_sequence();
    for (const int chunk : {kStaticStepTokens, 1, 64}) {
      world.feed(id, 1, 1000, {chunk});
      EXPECT_EQ(world.length(id), 1000) << formats.name() << " in chunks of " << chunk;
      ASSERT_TRUE(world.cache().truncate(id, 0).ok());
    }
    world.feed(id, 1, 1000, {500});
    EXPECT_EQ(world.try_step({{id, 1, 100}}, nullptr).code(), Code::kExhausted);
    EXPECT_EQ(world.cache().usage().reserved_bytes, reserved);
    expect_invariants(world);
  }
}

TEST(CacheCases, AStaticCacheThatNoMachineHoldsIsRefused) {
  ThreadPool threads(1);
  CacheOptions options = layers_of({"int8_token", "int8_token"}, {0});
  options.preallocate_tokens = uint64_t{1} << 63;
  EXPECT_EQ(KvCache::create(options, threads).status().code(), Code::kInvalidArgument);
  options.preallocate_tokens = uint64_t{1} << 39;
  EXPECT_EQ(KvCache::create(options, threads).status().code(), Code::kExhausted);
}

TEST(CacheCases, RealSizesStayWithinThreePercentOfTheFormula) {
  CacheOptions options;
  for (int i = 0; i < 30; ++i)
    options.layers.push_back(make_layer("int8_token", "int8_token", 0, 3, 64, 64));
  CacheWorld world({.cache = options});
  world.attends = false;
  world.feed(world.new_sequence(), 1, 1024, {512});
  const int64_t length[] = {1024};
  const CachePlan plan = plan_cache(options, length).value();
  const CacheUsage usage = world.cache().usage();
  EXPECT_EQ(usage.live_bytes, plan.total_bytes());
  EXPECT_LE(static_cast<double>(usage.reserved_bytes),
            1.03 * static_cast<double>(plan.total_bytes()));
  EXPECT_EQ(usage.ideal_bytes, 1024u * 30 * 3 * 64 * 2 * 2);
  EXPECT_GT(usage.workspace_bytes, 0u);
}

// Formats by layer: the cache takes the sum of what each layer takes alone.
TEST(CacheCases, CaseH5_BytesAreTheSumOfTheLayers) {
  const std::vector<LayerShape> shapes(4, {.num_kv_heads = 2, .key_dim = 32, .value_dim = 32});
  const int64_t lengths[] = {300, 70};
  for (const char* overrides :
       {"", "0-1=fp8_e4m3;2-3=int4_token", "-1=bf16", "1=int8/int4;0=f32"}) {
    const auto resolved = resolve_formats("int8_token", overrides, shapes, {}, true);
    ASSERT_TRUE(resolved.ok()) << resolved.status().message();
    CacheOptions options;
    uint64_t sum = 0;
    for (const FormatPair& pair : resolved->effective) {
      options.layers.push_back(make_layer(pair.key, pair.value));
      sum += plan_cache({.layers = {options.layers.back()}}, lengths)->total_bytes();
    }
    CacheWorld world({.cache = options});
    world.attends = false;
    for (const int64_t length : lengths)
      world.feed(world.new_sequence(), 1, length, {static_cast<int>(length)});
    EXPECT_EQ(plan_cache(options, lengths)->total_bytes(), sum) << overrides;
    EXPECT_EQ(world.cache().usage().live_bytes, sum) << overrides;
  }
}

TEST(CacheCases, ALayerCanReadAnothersPages) {
  CacheOptions options = layers_of({"int8_token", "int8_token"}, {0, 100, 0});
  options.layers[2].shares = 0;
  options.layers.push_back(options.layers[2]);
  options.layers[3].window = 50;  // sees less of the shared pages
  options.layers.push_back(CacheLayer());
  CacheWorld world({.cache = options});
  world.after_attend = [&](int layer, const auto& feeds, const auto& begins, const auto& outputs) {
    EXPECT_LT(
        reference_error(world, feeds[0], begins[0], layer, outputs[0][static_cast<size_t>(layer)]),
        1e-3)
        << layer;
  };
  const SequenceId id = world.new_sequence();
  world.feed(id, 1, 300, {200, 64, 1});
  const int64_t length[] = {300};
  CacheOptions owners = layers_of({"int8_token", "int8_token"}, {0, 100});
  EXPECT_EQ(world.cache().usage().live_bytes, plan_cache(owners, length).value().total_bytes());
  const StepItem item{id, 1};
  ASSERT_TRUE(world.cache().begin_step({&item, 1}).ok());
  const LayerRows rows = world.rows(1, 0, 300, 301);
  EXPECT_EQ(world.cache().append(2, rows.k.data(), rows.v.data()).message(),
            "layer 2 reads the cache of layer 0 and appends nothing");
  EXPECT_EQ(world.cache().append(4, rows.k.data(), rows.v.data()).message(),
            "layer 4 has no cache");
}

// A latent cache: one KV head whose values are a range of its keys.
TEST(CacheCases, ValuesCanBeARangeOfTheKeys) {
  for (const char* format : {"f32", "bf16"}) {
    CacheLayer layer = make_layer(format, format, 0, 1, 40, 32);
    layer.value_source = ValueSource::kKeyRange;
    layer.value_offset = 3;
    Outputs first;
    for (const int chunk : {300, 64, 7}) {
      CacheWorld world({.cache = {.layers = {layer}}, .group = 4, .fill = 0x7f});
      world.after_attend = [&](int l, const auto& feeds, const auto& begins, const auto& outputs) {
        EXPECT_LT(reference_error(world, feeds[0], begins[0], l, outputs[0][0]), 2e-6);
      };
      const Outputs out = world.feed(world.new_sequence(), 1, 300, {chunk});
      if (first.empty()) first = out;
      EXPECT_TRUE(same_bits(out, first));
      EXPECT_EQ(world.cache().usage().ideal_bytes, 300u * 40 * 2) << "no bytes for V";
    }
  }
  ThreadPool threads(1);
  CacheOptions options;
  options.layers = {make_layer("bf16", "int8_token", 0, 1, 40, 32)};
  options.layers[0].value_source = ValueSource::kKeyRange;
  EXPECT_EQ(KvCache::create(options, threads).status().code(), Code::kUnsupported);
}

TEST(CacheCases, SoftCappedScoresEqualTheReference) {
  CacheWorld world({.cache = layers_of({"int8_token", "int8_token"}, {0, 70}), .soft_cap = 2.0f});
  world.after_attend = [&](int layer, const auto& feeds, const auto& begins, const auto& outputs) {
    EXPECT_LT(
        reference_error(world, feeds[0], begins[0], layer, outputs[0][static_cast<size_t>(layer)]),
        1e-3);
  };
  world.feed(world.new_sequence(), 1, 200, {150, 1});
}

// The mass of a query over its pages sums to 1 and is 0 for pages that it doesn't see; asking for
// it changes no bit.
TEST(CacheCases, PageMassIsTheAttentionOfEachPage) {
  const CacheOptions options = layers_of({"int8_token", "int8_token"}, {200});
  CacheWorld world({.cache = options});
  const SequenceId id = world.new_sequence();
  world.feed(id, 1, 700, {700});
  const StepItem item{id, 2};
  ASSERT_TRUE(world.cache().begin_step({&item, 1}).ok());
  const LayerRows rows = world.rows(1, 0, 700, 702);
  ASSERT_TRUE(world.cache().append(0, rows.k.data(), rows.v.data()).ok());
  std::vector<float> plain(2 * 2 * 32), with_mass(plain.size());
  const AttentionParams params{.num_query_heads = 2, .scale = 0.2f};
  PageMass mass;
  ASSERT_TRUE(world.cache().attend(0, rows.q.data(), params, plain.data()).ok());
  ASSERT_TRUE(world.cache().attend(0, rows.q.data(), params, with_mass.data(), &mass).ok());
  EXPECT_EQ(plain, with_mass);
  ASSERT_EQ(mass.num_pages, 11);
  ASSERT_EQ(mass.mass.size(), 2u * 2 * 11);
  for (size_t query = 0; query < 4; ++query) {
    double sum = 0;
    for (size_t page = 0; page < 11; ++page) {
      const float x = mass.mass[query * 11 + page];
      sum += double{x};
      EXPECT_EQ(x > 0, page >= 7) << "the window begins at 501";
    }
    EXPECT_NEAR(sum, 1.0, 1e-5);
  }
}

}  // namespace
}  // namespace kvant::test
