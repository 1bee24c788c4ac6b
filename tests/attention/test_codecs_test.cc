// Everything that a codec may ask of the cache, each by a format of its own (test_formats.h).
#include <cmath>

#include "cache_world.h"

namespace kvant::test {
namespace {

constexpr int64_t kTokens = 300;  // page 0 is a sink, pages 1 to 3 get sealed, page 4 stays open

CacheOptions one_layer(const std::string& key, const std::string& value) {
  CacheOptions options;
  options.layers = {make_layer(key, value)};
  options.layers[0].key_scale = options.layers[0].value_scale = 0.25f;
  options.layers[0].rope.inv_freq.assign(16, 0.0f);
  return options;
}

// Rows that the cache holds after feeding, as the next query sees them.
struct Held {
  std::vector<float> k, v;
};
Held read_all(CacheWorld& world, SequenceId id, int layer) {
  const CacheLayer& l = world.options().cache.layers[static_cast<size_t>(layer)];
  const int64_t n = world.length(id);
  Held held{std::vector<float>(static_cast<size_t>(n * l.num_kv_heads * l.key_dim)),
            std::vector<float>(static_cast<size_t>(n * l.num_kv_heads * l.value_dim))};
  const Status status = world.cache().read(id, layer, 0, n, n, held.k.data(), held.v.data());
  EXPECT_TRUE(status.ok()) << status.message();
  return held;
}

class EveryTestFormat : public testing::TestWithParam<FormatPair> {};

TEST_P(EveryTestFormat, EqualsTheReferenceOnTheRowsThatTheCacheStandsFor) {
  CacheWorld world({.cache = one_layer(GetParam().key, GetParam().value)});
  world.after_attend = [&](int layer, const auto& feeds, const auto& begins, const auto& outputs) {
    EXPECT_LT(
        reference_error(world, feeds[0], begins[0], layer, outputs[0][static_cast<size_t>(layer)]),
        5e-6);
  };
  world.feed(world.new_sequence(), 1, kTokens, {64, 100, 1, 1, 70});
}

TEST_P(EveryTestFormat, AnyChunkingGivesTheSameBits) {
  Outputs first;
  for (const std::vector<int>& chunks : std::vector<std::vector<int>>{{1000}, {64}, {1}, {7, 90}}) {
    CacheWorld world({.cache = one_layer(GetParam().key, GetParam().value)});
    const Outputs out = world.feed(world.new_sequence(), 1, kTokens, chunks);
    if (first.empty()) first = out;
    EXPECT_EQ(out, first) << "chunks of " << chunks[0];
  }
}

INSTANTIATE_TEST_SUITE_P(
    TestFormats, EveryTestFormat,
    testing::Values(FormatPair{"test_rows", "test_rows"}, FormatPair{"test_basis", "test_basis"},
                    FormatPair{"test_table", "bf16"}, FormatPair{"f32", "test_basis"},
                    FormatPair{"test_pre_rope", "f16"}, FormatPair{"test_rows", "test_key_rows"},
                    FormatPair{"bf16", "test_key_rows"}, FormatPair{"test_outlier", "test_outlier"},
                    FormatPair{"test_artifact", "test_artifact"}),
    [](const auto& info) { return info.param.key + "_and_" + info.param.value; });

TEST(TestFormats, SealedPagesAreEncodedAndOthersAreNot) {
  CacheWorld world({.cache = one_layer("test_rows", "f32")});
  const SequenceId id = world.new_sequence();
  world.feed(id, 1, kTokens, {1000});
  const Held held = read_all(world, id, 0);
  const LayerRows rows = world.rows(1, 0, 0, kTokens);
  const size_t width = 64;
  for (int64_t t = 0; t < kTokens; ++t) {
    const bool sealed = t >= 64 && t < 256;
    bool sixteenths = true;
    for (size_t c = 0; c < width; ++c) {
      const float x = held.k[static_cast<size_t>(t) * width + c];
      sixteenths &= x * 16 == std::nearbyint(x * 16);
      ASSERT_NEAR(x, rows.k[static_cast<size_t>(t) * width + c], 0.05);
    }
    ASSERT_EQ(sixteenths, sealed) << t;
  }
  EXPECT_EQ(held.v, rows.v) << "f32 values are kept to the bit";
}

TEST(TestFormats, PreRopeRowsReachTheCodecWithTheirPosition) {
  CacheOptions options = one_layer("test_pre_rope", "f32");
  options.layers[0].rope.inv_freq.assign(16, 0.01f);
  CacheWorld world({.cache = options});  // gives K itself as the rows before RoPE
  const SequenceId id = world.new_sequence();
  world.feed(id, 1, kTokens, {50, 1});
  const Held held = read_all(world, id, 0);
  const LayerRows rows = world.rows(1, 0, 0, kTokens);
  for (const int64_t t : {64, 100, 255}) {
    for (size_t j = 0; j < 16; ++j) {
      const size_t at = static_cast<size_t>(t) * 64 + j;
      const double angle = 0.01 * static_cast<double>(t);
      EXPECT_NEAR(held.k[at], rows.k[at] * std::cos(angle) - rows.k[at + 16] * std::sin(angle), 0.1)
          << t << " " << j;
    }
  }
}

// Mean of one head's page as `rows` ([tokens][2 heads][32]) has it.
double mean_of_page(const std::vector<float>& rows, size_t page, size_t head) {
  double sum = 0;
  for (size_t t = page * 64; t < page * 64 + 64; ++t) {
    for (size_t c = 0; c < 32; ++c) sum += double{rows[t * 64 + head * 32 + c]};
  }
  return sum / (64 * 32);
}

TEST(TestFormats, ThePreviousLayersDecodedPageReachesTheCodec) {
  // A sealed and an exact layer before; the latter also where its pages leave the window within the
  // step.
  for (const auto& [previous, window] : {std::pair{"test_rows", 0}, {"f32", 0}, {"f32", 100}}) {
    CacheOptions options;
    options.layers = {make_layer(previous, previous, window),
                      make_layer("test_previous", "test_previous", window)};
    CacheWorld world({.cache = options});
    const SequenceId id = world.new_sequence();
    int checked = 0;
    world.after_attend = [&](int layer, const auto&, const auto&, const auto&) {
      if (layer == 0) return;
      Held held[2];
      for (int l = 0; l < 2; ++l) {
        for (std::vector<float>* x : {&held[l].k, &held[l].v}) x->resize(192 * 64);
        const Status status = world.cache().read(id, l, 64, 128, 192, held[l].k.data() + 64 * 64,
                                                 held[l].v.data() + 64 * 64);
        ASSERT_TRUE(status.ok()) << status.message();
      }
      for (const size_t page : {1, 2}) {
        for (const size_t head : {0, 1}) {
          EXPECT_NEAR(held[1].k[page * 4096 + head * 32], mean_of_page(held[0].k, page, head),
                      1e-6);
          EXPECT_NEAR(held[1].v[page * 4096 + head * 32], mean_of_page(held[0].v, page, head),
                      1e-6);
          ++checked;
        }
      }
    };
    world.feed(id, 1, 200, {200});
    EXPECT_EQ(checked, 4);
  }
}

TEST(TestFormats, TheDecodedKeysReachAValueCodec) {
  for (const char* key : {"test_rows", "bf16"}) {
    CacheWorld world({.cache = one_layer(key, "test_key_rows")});
    const SequenceId id = world.new_sequence();
    world.feed(id, 1, kTokens, {30});
    const Held held = read_all(world, id, 0);
    for (const size_t page : {1, 2, 3}) {
      for (const size_t head : {0, 1}) {
        EXPECT_NEAR(held.v[page * 4096 + head * 32], mean_of_page(held.k, page, head), 1e-6) << key;
      }
    }
  }
}

TEST(TestFormats, AFormatWithoutWhatItNeedsIsRefusedWithTheLayer) {
  ThreadPool threads(1);
  const auto message_of = [&](CacheOptions options) {
    const auto cache = create_cache(std::move(options), threads, {.formats = test_formats()});
    EXPECT_FALSE(cache.ok());
    EXPECT_EQ(cache.status().code(), Code::kUnsupported);
    return cache.status().message();
  };
  CacheOptions options;
  options.layers = {make_layer("test_previous", "bf16")};
  EXPECT_EQ(
      message_of(options),
      "layer 0: test_previous needs a layer before it with a cache of the same shape and window");
  options.layers = {make_layer("bf16", "bf16"), make_layer("bf16", "test_artifact")};
  EXPECT_EQ(message_of(options), "layer 1: test_artifact needs a given scale");
}

TEST(TestFormats, MissingPreRopeRowsFailTheAppend) {
  ThreadPool threads(1);
  const std::unique_ptr<KvCache> cache =
      create_cache(one_layer("test_pre_rope", "bf16"), threads, {.formats = test_formats()})
          .value();
  const StepItem item{cache->create_sequence().value(), 1};
  ASSERT_TRUE(cache->begin_step({&item, 1}).ok());
  const std::vector<float> row(64, 1.0f);
  EXPECT_EQ(cache->append(0, row.data(), row.data()).code(), Code::kInvalidArgument);
  EXPECT_TRUE(cache->append(0, row.data(), row.data(), row.data()).ok());
}

}  // namespace
}  // namespace kvant::test
