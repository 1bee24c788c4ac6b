// What happens to one sequence: branches, cuts, failed and aborted steps, calls and options that
// make no sense. Cases C1 to C17 as far as a cache alone goes.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cache_world.h"

namespace kvant::test {
namespace {

// Three branches from a half-filled page; each goes its own way and equals a solo run of the same
// tokens.
TEST(SequenceCases, CaseC7_BranchesEqualSoloRuns) {
  for (const FormatPair& formats : kFewPairs) {
    for (const int prompt : {30, 64, 100, 150}) {
      const CacheOptions options = layers_of(formats, {0, 90});
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
TEST(SequenceCases, ACutSequenceGoesOnAsIfItHadNeverBeenLonger) {
  for (const FormatPair& formats : kFewPairs) {
    for (const int exact_window : {0, 64}) {
      for (const int64_t cut : {299, 270, 256, 255, 200, 100, 30, 0}) {
        CacheOptions options = layers_of(formats, {0});
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

// Layers with windows of 70 and 130 tokens beside a full one. What can be kept is what the smallest
// window still holds: 70 tokens before position 310 begin on page 3, so from 261 on a cut needs no
// other page; before that the layer has lost what it would see.
TEST(SequenceCases, CaseC10_ACutKeepsWhatEveryWindowStillHolds) {
  for (const FormatPair& formats : kFewPairs) {
    const CacheOptions options = layers_of(formats, {70, 130, 0});
    const Outputs cold = solo(options, 1, 340);
    for (const int64_t cut : {309, 300, 261, 260, 256, 200, 130, 70, 30}) {
      const int64_t expected = cut >= 261 ? cut : 0;
      CacheWorld world({.cache = options, .fill = 0x7f});
      const SequenceId id = world.new_sequence();
      world.feed(id, 1, 310, {1000});
      const KvCache::Fork fork = world.cache().fork(id, cut).value();
      EXPECT_EQ(fork.rollback.kept, expected) << formats.name() << " fork at " << cut;
      EXPECT_EQ(world.cache().truncate(id, cut)->kept, expected) << formats.name() << " " << cut;
      expect_invariants(world);
      // Both go on at once, the one in a single chunk, the other token by token at the end.
      const Outputs one = world.feed(id, 1, 340, {1000});
      const Outputs two = world.feed(fork.sequence, 1, 340, {128, 1});
      EXPECT_TRUE(same_bits(one, slice(cold, expected, 340, 340))) << formats.name() << " " << cut;
      EXPECT_TRUE(same_bits(two, slice(cold, expected, 340, 340))) << formats.name() << " " << cut;
      expect_invariants(world);
    }
  }
}

TEST(SequenceCases, HugeFiniteValuesSaturate) {
  CacheWorld world({.cache = layers_of({"bf16", "f16"}, {0})});
  const StepItem item{world.new_sequence(), 1};
  ASSERT_TRUE(world.cache().begin_step({&item, 1}).ok());
  std::vector<float> row(32, 3.4e38f), k(32), v(32);
  ASSERT_TRUE(world.cache().append(0, row.data(), row.data()).ok());
  ASSERT_TRUE(world.cache().end_step().ok());
  ASSERT_TRUE(world.cache().read(item.sequence, 0, 0, 1, 1, k.data(), v.data()).ok());
  EXPECT_EQ(k[0], 0x1.fep127f);
  EXPECT_EQ(v[0], 65504.0f);
}

TEST(SequenceCases, AnAbortedStepChangesNothing) {
  for (const FormatPair& formats : kFewPairs) {
    const CacheOptions options = layers_of(formats, {0, 90});
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

TEST(SequenceCases, ExhaustionNamesBothNumbersAndChangesNothing) {
  CacheOptions options = layers_of({"int8_token", "int8_token"}, {0});
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

TEST(SequenceCases, CallsOutOfOrderAreRefused) {
  CacheWorld world({.cache = layers_of({"bf16", "bf16"}, {0, 0})});
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

// One check after the scale has the type that it is stored in, where a cache is made.
TEST(SequenceCases, CaseE6_GivenScalesAreCheckedWhereACacheIsMade) {
  ThreadPool threads(1);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const char* format : {"int8_tensor", "fp8_e4m3_tensor_rot"}) {
    CacheOptions options = layers_of({format, "bf16"}, {0, 0});
    options.layers[0].key_scale = options.layers[1].key_scale = 0.03f;
    EXPECT_TRUE(KvCache::create(options, threads).ok());
    for (const float bad : {-1.0f, std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity,
                            1e-38f, 1e38f, static_cast<float>(1e-50)}) {
      options.layers[1].key_scale = bad;
      const Status status = KvCache::create(options, threads).status();
      EXPECT_FALSE(status.ok()) << format << " " << bad;
      EXPECT_NE(status.message().find("layer 1"), std::string::npos) << status.message();
      EXPECT_NE(status.message().find(format), std::string::npos) << status.message();
      EXPECT_NE(status.message().find("scale"), std::string::npos) << status.message();
    }
  }
}

TEST(SequenceCases, GivenScalesOfHeadsAreOneForEach) {
  ThreadPool threads(1);
  CacheOptions options = layers_of({"int8_head", "fp8_e4m3_head"}, {0, 0});
  const auto heads = static_cast<size_t>(options.layers[1].num_kv_heads);
  options.layers[1].key_head_scales.assign(heads, 0.03f);
  options.layers[1].value_head_scales.assign(heads, 0.01f);
  EXPECT_TRUE(KvCache::create(options, threads).ok());
  options.layers[1].key_head_scales.back() = -1;
  EXPECT_NE(
      KvCache::create(options, threads).status().message().find("the scale -1 given for layer 1"),
      std::string::npos);
  options.layers[1].key_head_scales.assign(heads + 1, 0.03f);
  EXPECT_NE(KvCache::create(options, threads).status().message().find("given scales of"),
            std::string::npos);
}

TEST(SequenceCases, OptionsThatMakeNoSenseAreRefusedWithTheLayer) {
  ThreadPool threads(1);
  const auto message = [&](CacheOptions options) {
    return KvCache::create(options, threads).status().message();
  };
  CacheOptions good = layers_of({"bf16", "bf16"}, {0, 0});
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
