// What happens to sequences over time: windows, branches, saturated pools, cuts, failures. Cases B8
// to C11 of the list of inputs that broke other systems; the page is 64 tokens here, so their
// numbers are scaled up.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/rng.h"
#include "cache_world.h"

namespace kvant::test {
namespace {

// Few, and unlike one another: integers per token and per channel, rotated, floats, mixed pairs.
const FormatPair kPairs[] = {{"int8_token", "int8_token"},
                             {"int8_channel_z", "int4_token_z_rot"},
                             {"bf16", "int8_token"},
                             {"fp8_e4m3", "fp8_e4m3"},
                             {"f32", "f32"}};

CacheOptions layers(const FormatPair& formats, std::vector<int> windows) {
  CacheOptions options;
  for (const int window : windows)
    options.layers.push_back(make_layer(formats.key, formats.value, window, 1, 32, 32));
  return options;
}

Outputs solo(const CacheOptions& options, uint64_t stream, int64_t tokens) {
  CacheWorld world({.cache = options});
  return world.feed(world.new_sequence(), stream, tokens, {static_cast<int>(tokens)});
}

// Rows [begin, end) of outputs that start at position 0.
Outputs slice(const Outputs& all, int64_t begin, int64_t end, int64_t tokens) {
  Outputs part;
  for (const std::vector<float>& layer : all) {
    const size_t width = layer.size() / static_cast<size_t>(tokens);
    part.emplace_back(layer.begin() + begin * static_cast<ptrdiff_t>(width),
                      layer.begin() + end * static_cast<ptrdiff_t>(width));
  }
  return part;
}

void expect_invariants(CacheWorld& world) {
  const Status status = world.cache().check_invariants();
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(CacheCases, CaseB9_TokensAgeByTheirPositionHoweverTheyArrive) {
  for (const FormatPair& formats : kPairs) {
    const CacheOptions options = layers(formats, {0});
    std::vector<float> first_k, first_v;
    uint64_t first_bytes = 0;
    for (const std::vector<int>& chunks :
         std::vector<std::vector<int>>{{300}, {4, 1}, {7, 17, 1}, {5, 5, 14}}) {
      CacheWorld world({.cache = options});
      world.attends = false;
      const SequenceId id = world.new_sequence();
      world.feed(id, 1, 300, chunks);
      std::vector<float> k(300 * 32), v(300 * 32);
      ASSERT_TRUE(world.cache().read(id, 0, 0, 300, 300, k.data(), v.data()).ok());
      if (first_k.empty()) {
        first_k = k;
        first_v = v;
        first_bytes = world.cache().usage().live_bytes;
      }
      EXPECT_EQ(k, first_k) << formats.name();
      EXPECT_EQ(v, first_v) << formats.name();
      EXPECT_EQ(world.cache().usage().live_bytes, first_bytes) << formats.name();
    }
  }
}

// Every chunking of a sliding layer equals the reference and every other chunking, and the pool
// keeps its window only.
TEST(CacheCases, CaseC11_EachQuerySeesExactlyItsWindow) {
  for (const FormatPair& formats : {kPairs[0], kPairs[4]}) {
    for (const int window : {1, 8, 63, 64, 65, 100, 128}) {
      Outputs first;
      for (const std::vector<int>& chunks : std::vector<std::vector<int>>{{220}, {64, 1}, {3, 5}}) {
        CacheWorld world({.cache = layers(formats, {window})});
        world.after_attend = [&](int layer, const auto& feeds, const auto& begins,
                                 const auto& outputs) {
          EXPECT_LT(reference_error(world, feeds[0], begins[0], layer, outputs[0][0]), 1e-3)
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
      CacheWorld world({.cache = layers({"f32", "f32"}, {8})});
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
  CacheWorld world({.cache = layers({"int8_token", "int8_token"}, {100})});
  world.attends = false;
  const SequenceId id = world.new_sequence();
  world.feed(id, 1, 300, {64});
  const uint64_t at_300 = world.cache().usage().live_bytes;
  world.feed(id, 1, 300 + 64 * 20, {64, 256});
  EXPECT_EQ(world.cache().usage().live_bytes, at_300);
}

// Pages that the sliding layer frees are taken by the quantized one, with what they held.
TEST(CacheCases, CaseC6_RecycledPagesOfASlidingLayerDontReachOthers) {
  CacheOptions options = layers({"fp8_e4m3", "fp8_e4m3"}, {8, 0});
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
  for (const FormatPair& formats : kPairs) {
    CacheOptions options = layers(formats, {0, 90});
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

// Three branches from a half-filled page; each goes its own way and equals a solo run of the same
// tokens.
TEST(CacheCases, CaseC7_BranchesEqualSoloRuns) {
  for (const FormatPair& formats : kPairs) {
    for (const int prompt : {30, 64, 100, 150}) {
      const CacheOptions options = layers(formats, {0, 90});
      CacheWorld world({.cache = options, .fill = 0xff});
      const SequenceId root = world.new_sequence();
      world.feed(root, 1, prompt, {1000});
      std::vector<SequenceId> branches = {root};
      for (int i = 0; i < 2; ++i) {
        const KvCache::Fork fork = world.cache().fork(root, prompt).value();
        ASSERT_EQ(fork.rollback.kept, prompt);
        branches.push_back(fork.sequence);
      }
      std::vector<Outputs> outputs(3, Outputs(2));
      for (int step = 0; step < 80; ++step) {
        std::vector<Feed> feeds;
        for (size_t b = 0; b < 3; ++b) feeds.push_back({branches[b], 10 + b, 1});
        const std::vector<Outputs> out = world.step(feeds);
        for (size_t b = 0; b < 3; ++b) append_outputs(outputs[b], out[b]);
      }
      expect_invariants(world);
      for (size_t b = 0; b < 3; ++b) {
        CacheWorld alone({.cache = options});
        const SequenceId id = alone.new_sequence();
        alone.feed(id, 1, prompt, {1000});
        EXPECT_TRUE(same_bits(alone.feed(id, 10 + b, prompt + 80, {1}), outputs[b]))
            << formats.name() << " " << prompt;
        ASSERT_TRUE(world.cache().release_sequence(branches[b]).ok());
      }
      EXPECT_EQ(world.cache().usage().live_bytes, 0u);
      expect_invariants(world);
    }
  }
}

// After a cut, feeding the same tokens again gives what an uncut sequence gives.
TEST(CacheCases, ACutSequenceGoesOnAsIfItHadNeverBeenLonger) {
  for (const FormatPair& formats : kPairs) {
    for (const int exact_window : {0, 64}) {
      for (const int64_t cut : {299, 270, 256, 255, 200, 100, 30, 0}) {
        CacheOptions options = layers(formats, {0});
        options.exact_window = exact_window;
        const Outputs expected = solo(options, 1, 340);
        CacheWorld world({.cache = options, .fill = 0x7f});
        const SequenceId id = world.new_sequence();
        world.feed(id, 1, 300, {1000});
        const int64_t kept = world.cache().truncate(id, cut).value().kept;
        EXPECT_LE(kept, cut);
        EXPECT_EQ(world.length(id), kept);
        const Outputs out = world.feed(id, 1, 340, {1000});
        EXPECT_TRUE(same_bits(out, slice(expected, kept, 340, 340)))
            << formats.name() << " W " << exact_window << " cut at " << cut << ", kept " << kept;
        expect_invariants(world);
      }
    }
  }
}

TEST(CacheCases, AnExactWindowKeepsItsPagesExact) {
  CacheOptions options = layers({"int4_token_z_rot", "int4_token_z_rot"}, {0});
  options.exact_window = 128;
  CacheWorld world({.cache = options});
  world.after_attend = [&](int layer, const auto& feeds, const auto& begins, const auto& outputs) {
    EXPECT_LT(reference_error(world, feeds[0], begins[0], layer, outputs[0][0]), 1e-3);
  };
  const SequenceId id = world.new_sequence();
  world.feed(id, 1, 400, {150, 64, 1, 7});
  std::vector<float> k(400 * 32), v(400 * 32);
  ASSERT_TRUE(world.cache().read(id, 0, 0, 400, 400, k.data(), v.data()).ok());
  CacheWorld exact({.cache = layers({"bf16", "bf16"}, {0})});
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

TEST(CacheCases, ANanOrInfinityFailsTheStepWithItsPlace) {
  const CacheOptions options = layers({"int8_token", "int8_token"}, {0, 0});
  CacheWorld world({.cache = options});
  const SequenceId id = world.new_sequence();
  world.feed(id, 1, 70, {70});
  const StepItem item{id, 3};
  ASSERT_TRUE(world.cache().begin_step({&item, 1}).ok());
  LayerRows rows = world.rows(1, 0, 70, 73);
  ASSERT_TRUE(world.cache().append(0, rows.k.data(), rows.v.data()).ok());
  rows = world.rows(1, 1, 70, 73);
  rows.v[32 + 5] = std::numeric_limits<float>::quiet_NaN();
  const Status status = world.cache().append(1, rows.k.data(), rows.v.data());
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(
      status.message(),
      "layer 1: V of sequence 1 at position 71, head 0, channel 5 is nan; wanted a finite number");
  world.cache().abort_step();
  EXPECT_EQ(world.length(id), 70);
  expect_invariants(world);
  EXPECT_TRUE(same_bits(world.feed(id, 1, 75, {5}), slice(solo(options, 1, 75), 70, 75, 75)));
}

TEST(CacheCases, HugeFiniteValuesSaturate) {
  CacheWorld world({.cache = layers({"bf16", "f16"}, {0})});
  const StepItem item{world.new_sequence(), 1};
  ASSERT_TRUE(world.cache().begin_step({&item, 1}).ok());
  std::vector<float> row(32, 3.4e38f), k(32), v(32);
  ASSERT_TRUE(world.cache().append(0, row.data(), row.data()).ok());
  ASSERT_TRUE(world.cache().end_step().ok());
  ASSERT_TRUE(world.cache().read(item.sequence, 0, 0, 1, 1, k.data(), v.data()).ok());
  EXPECT_EQ(k[0], 0x1.fep127f);
  EXPECT_EQ(v[0], 65504.0f);
}

TEST(CacheCases, AnAbortedStepChangesNothing) {
  for (const FormatPair& formats : kPairs) {
    const CacheOptions options = layers(formats, {0, 90});
    const Outputs expected = solo(options, 1, 320);
    CacheWorld world({.cache = options, .fill = 0x7f});
    const SequenceId id = world.new_sequence();
    world.feed(id, 1, 150, {150});
    const uint64_t live = world.cache().usage().live_bytes;
    for (const int tokens : {1, 42, 170}) {
      const StepItem item{id, tokens};
      ASSERT_TRUE(world.cache().begin_step({&item, 1}).ok());
      for (int layer = 0; layer < 2; ++layer) {  // other tokens than those that stay
        const LayerRows rows = world.rows(9, layer, 150, 150 + tokens);
        ASSERT_TRUE(world.cache().append(layer, rows.k.data(), rows.v.data()).ok());
      }
      expect_invariants(world);
      world.cache().abort_step();
      EXPECT_EQ(world.length(id), 150);
      EXPECT_EQ(world.cache().usage().live_bytes, live);
    }
    EXPECT_TRUE(same_bits(world.feed(id, 1, 320, {170}), slice(expected, 150, 320, 320)))
        << formats.name();
  }
}

TEST(CacheCases, ExhaustionNamesBothNumbersAndChangesNothing) {
  CacheOptions options = layers({"int8_token", "int8_token"}, {0});
  const int64_t length[] = {200};
  options.max_bytes = plan_cache(options, length).value().total_bytes();
  CacheWorld world({.cache = options});
  const SequenceId id = world.new_sequence();
  world.feed(id, 1, 200, {200});
  const Status status = world.try_step({{id, 1, 200}}, nullptr);
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_NE(status.message().find("0 of " + std::to_string(options.max_bytes)), std::string::npos)
      << status.message();
  EXPECT_EQ(world.length(id), 200);
  EXPECT_EQ(world.step({{id, 1, 1}}).size(), 1u) << "the open page still has room";
}

TEST(CacheCases, AStaticCacheServesItsLengthAndNoMore) {
  for (const FormatPair& formats : kPairs) {
    CacheOptions options = layers(formats, {0, 90});
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
  CacheOptions options = layers({"int8_token", "int8_token"}, {0});
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

TEST(CacheCases, ALayerCanReadAnothersPages) {
  CacheOptions options = layers({"int8_token", "int8_token"}, {0, 100, 0});
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
  CacheOptions owners = layers({"int8_token", "int8_token"}, {0, 100});
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
  CacheWorld world({.cache = layers({"int8_token", "int8_token"}, {0, 70}), .soft_cap = 2.0f});
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
  const CacheOptions options = layers({"int8_token", "int8_token"}, {200});
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

TEST(CacheCases, CallsOutOfOrderAreRefused) {
  CacheWorld world({.cache = layers({"bf16", "bf16"}, {0, 0})});
  KvCache& cache = world.cache();
  const SequenceId id = world.new_sequence();
  const LayerRows rows = world.rows(1, 0, 0, 1);
  std::vector<float> out(64);
  const AttentionParams params{.num_query_heads = 2, .scale = 1};
  const auto refused = [](const Status& status) { return status.code() == Code::kInvalidArgument; };
  EXPECT_TRUE(refused(cache.append(0, rows.k.data(), rows.v.data())));
  EXPECT_TRUE(refused(cache.attend(0, rows.q.data(), params, out.data())));
  EXPECT_TRUE(refused(cache.end_step()));
  const StepItem item{id, 1};
  ASSERT_TRUE(cache.begin_step({&item, 1}).ok());
  EXPECT_TRUE(refused(cache.begin_step({&item, 1})));
  EXPECT_TRUE(refused(cache.release_sequence(id)));
  EXPECT_TRUE(refused(cache.truncate(id, 0).status()));
  EXPECT_TRUE(refused(cache.fork(id, 0).status()));
  EXPECT_TRUE(refused(cache.append(1, rows.k.data(), rows.v.data())));
  EXPECT_TRUE(refused(cache.attend(0, rows.q.data(), params, out.data())));
  ASSERT_TRUE(cache.append(0, rows.k.data(), rows.v.data()).ok());
  EXPECT_TRUE(refused(cache.append(0, rows.k.data(), rows.v.data())));
  EXPECT_TRUE(
      refused(cache.attend(0, rows.q.data(), {.num_query_heads = 0, .scale = 1}, out.data())));
  EXPECT_TRUE(refused(cache.end_step())) << "layer 1 is missing";
  ASSERT_TRUE(cache.append(1, rows.k.data(), rows.v.data()).ok());
  EXPECT_TRUE(refused(cache.attend(0, rows.q.data(), params, out.data()))) << "layer 0 is over";
  ASSERT_TRUE(cache.end_step().ok());
  EXPECT_EQ(world.length(id), 1);
}

TEST(CacheCases, OptionsThatMakeNoSenseAreRefusedWithTheLayer) {
  ThreadPool threads(1);
  const auto message = [&](CacheOptions options) {
    return KvCache::create(options, threads).status().message();
  };
  CacheOptions good = layers({"bf16", "bf16"}, {0, 0});
  CacheOptions bad = good;
  bad.sinks = 10;
  EXPECT_EQ(message(bad), "the number of sink tokens is 10; wanted a multiple of 64 tokens, or 0");
  bad = good;
  bad.exact_window = -64;
  EXPECT_EQ(message(bad), "the exact window is -64; wanted a multiple of 64 tokens, or 0");
  bad = good;
  bad.layers[1].window = -1;
  EXPECT_EQ(message(bad), "layer 1: the window is -1 tokens; wanted at least 1, or 0 for none");
  bad = good;
  bad.layers[1].shares = 1;
  EXPECT_EQ(message(bad), "layer 1: it shares layer 1, which isn't earlier");
  bad = good;
  bad.layers[0].formats.value = "int9_token";
  EXPECT_NE(message(bad).find("layer 0: "), std::string::npos);
  bad.layers.clear();
  EXPECT_NE(message(bad).find("number of layers is 0"), std::string::npos);
}

}  // namespace
}  // namespace kvant::test
