// Magnitudes, ranges and the scales that are found from them, against definitions written out.
#include "calibrate/range_statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/forwarding_cache.h"
#include "base/bytes.h"
#include "base/float_types.h"
#include "base/rng.h"
#include "calibrate/overlap.h"
#include "calibrate/resume.h"
#include "calibrate/scale_fit.h"
#include "files/temp_file.h"
#include "formats/codec.h"
#include "formats/fp8_types.h"

namespace kvant {
namespace {

using testing::HasSubstr;

float bf16(float x) { return bf16_to_f32(f32_to_bf16(x)); }

// Numbers of many sizes, with ties and zeros.
std::vector<float> some_numbers(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> out(n);
  for (float& x : out) x = rng.below(20) == 0 ? 0.0f : bf16(rng.normal() * rng.normal() * 3);
  return out;
}

Magnitudes magnitudes_of(std::span<const float> numbers) {
  Magnitudes out;
  for (const float x : numbers) out.add(x);
  return out;
}

TEST(Magnitudes, PercentilesAreThoseOfSortedNumbers) {
  const std::vector<float> numbers = some_numbers(5000, 1);
  const Magnitudes magnitudes = magnitudes_of(numbers);
  std::vector<float> sorted;
  for (const float x : numbers) sorted.push_back(std::fabs(x));
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(magnitudes.count(), 5000);
  EXPECT_EQ(magnitudes.largest(), sorted.back());
  for (const double p : {0.01, 1.0, 25.0, 50.0, 99.0, 99.9, 99.99, 100.0}) {
    const auto rank = static_cast<size_t>(std::ceil(p / 100 * 5000));
    EXPECT_EQ(magnitudes.percentile(p), sorted[std::max<size_t>(rank, 1) - 1]) << p;
  }
  const auto beyond = std::count_if(sorted.begin(), sorted.end(), [](float x) { return x > 2; });
  EXPECT_EQ(magnitudes.beyond(2), beyond);
}

TEST(Magnitudes, TheEndsOfTheRangeAreWhatTheHeaderSays) {
  Magnitudes magnitudes = magnitudes_of(std::vector<float>{0x1p-24f, 0x1p-30f, -3e38f});
  EXPECT_EQ(magnitudes.largest(), 65280.0f);
  EXPECT_EQ(magnitudes.beyond(0), 2) << "2^-30 counts as zero";
  EXPECT_EQ(Magnitudes().largest(), 0);
  EXPECT_EQ(Magnitudes().percentile(99), 0);
  magnitudes.merge(magnitudes_of(std::vector<float>{1.0f}));
  EXPECT_EQ(magnitudes.count(), 4);
}

// llm-compressor's static min-max: the larger end of the range over the type's largest value.
TEST(ScaleFit, MaxPutsTheLargestOnTheFormatsLargest) {
  const std::vector<float> numbers = some_numbers(3000, 2);
  const auto [low, high] = std::minmax_element(numbers.begin(), numbers.end());
  const float largest = std::max(-*low, *high);
  const Magnitudes magnitudes = magnitudes_of(numbers);
  for (const auto& [name, most] :
       {std::pair{"fp8_e4m3_head", 448.0f}, {"fp8_e5m2_tensor", 57344.0f}, {"int8_head", 127.0f}}) {
    EXPECT_EQ(fit_scale(magnitudes, *find_scaled_format(name), {}), largest / most) << name;
  }
  EXPECT_EQ(fit_scale(Magnitudes(), *find_scaled_format("int8_head"), {}), 0);
}

TEST(ScaleFit, PercentileClipsTheRest) {
  const Magnitudes magnitudes = magnitudes_of(some_numbers(4000, 3));
  const ScaledFormat& format = *find_scaled_format("int8_tensor");
  const ScaleMethod method = parse_scale_method("percentile:99").value();
  EXPECT_EQ(fit_scale(magnitudes, format, method), magnitudes.percentile(99) / 127);
  EXPECT_LE(magnitudes.beyond(127 * fit_scale(magnitudes, format, method)), 40);
  // Nearly all zeros: a scale all the same.
  const Magnitudes zeros = magnitudes_of(std::vector<float>{0, 0, 0, 0, 5});
  EXPECT_EQ(fit_scale(zeros, format, parse_scale_method("percentile:50").value()), 5.0f / 127);
}

TEST(ScaleFit, MseHasTheLeastErrorOfItsCandidates) {
  std::vector<float> numbers = some_numbers(2000, 4);
  numbers.push_back(60);  // an outlier that a clip gives up
  const Magnitudes magnitudes = magnitudes_of(numbers);
  for (const char* name : {"int8_head", "fp8_e4m3_head"}) {
    const ScaledFormat& format = *find_scaled_format(name);
    const auto error = [&](float scale) {
      double sum = 0;
      for (const float x : numbers) {
        const float code = std::string_view(name).starts_with("int8")
                               ? std::nearbyint(std::clamp(x / scale, -127.0f, 127.0f))
                               : e4m3_to_f32(E4m3::encode(x / scale));
        sum += (double{code * scale} - double{x}) * (double{code * scale} - double{x});
      }
      return sum;
    };
    const float best = fit_scale(magnitudes, format, parse_scale_method("mse").value());
    for (int i = 0; i < 80; ++i) {
      const float candidate = 60.0f * static_cast<float>(100 - i) / 100 / format.largest;
      EXPECT_LE(error(best), error(candidate) * (1 + 1e-9)) << name << " " << i;
    }
  }
}

// Whatever takes a given scale can be calibrated for: a new format needs a row in scale_fit.cc.
TEST(ScaleFit, EveryFormatOfTheRegistryThatTakesAScaleGetsOne) {
  const Magnitudes magnitudes = magnitudes_of(some_numbers(1000, 6));
  int count = 0;
  for (const FormatInfo& info : all_formats()) {
    const ScaledFormat* format = find_scaled_format(info.name);
    ASSERT_EQ(format != nullptr, takes_given_scale(info)) << info.name;
    if (format == nullptr) continue;
    ++count;
    EXPECT_EQ(format->per_head, info.granularity == Granularity::kHead) << info.name;
    EXPECT_EQ(format->rotated, info.rotated) << info.name;
    for (const char* method : {"max", "percentile:99", "mse"}) {
      const ScaleMethod parsed = parse_scale_method(method).value();
      const bool is_refused = !check_method(*format, parsed).ok();
      EXPECT_EQ(is_refused, format->round == nullptr && std::string_view(method) == "mse");
      if (is_refused) continue;
      const float scale = fit_scale(magnitudes, *format, parsed);
      EXPECT_GT(scale, 0) << info.name << " " << method;
      EXPECT_LE(scale, magnitudes.largest() / format->largest) << info.name << " " << method;
    }
  }
  EXPECT_GE(count, 14);
}

// The largest block of a page then has E4M3's largest scale, and nothing saturates.
TEST(ScaleFit, NvFp4sScaleHoldsTheLargest) {
  Rng rng(8);
  AlignedArray<float> rows(kPageTokens * 32), decoded(kPageTokens * 32);
  Magnitudes magnitudes;
  for (float& x : std::span(rows.data(), kPageTokens * 32)) {
    x = bf16(rng.normal() * 9000);
    magnitudes.add(x);
  }
  const ScaledFormat& format = *find_scaled_format("nvfp4_tensor");
  const float largest = magnitudes.largest();
  const auto error_with = [&](float scale) {
    CodecArtifacts artifacts;
    artifacts.tensor_scale = scale;
    CodecBinding binding;
    binding.dim = 32;
    binding.artifacts = &artifacts;
    const auto codec = bind_codec(**find_format("nvfp4_tensor"), binding);
    AlignedArray<std::byte> page((*codec)->page_bytes());
    PageInput input;
    input.rows = rows.data();
    (*codec)->encode(input, page.data());
    (*codec)->decode(page.data(), decoded.data());
    float most = 0;
    for (size_t i = 0; i < kPageTokens * 32; ++i)
      most = std::max(most, std::fabs(decoded.data()[i] - rows.data()[i]));
    return most;
  };
  EXPECT_LE(error_with(fit_scale(magnitudes, format, {})), largest / 6 * 1.01f)
      << "half the step between 4 and 6";
  EXPECT_GT(error_with(1), largest / 6 * 1.01f) << "2,688 is all that a scale of 1 holds";
}

TEST(ScaleFit, MethodsThatArentAreRefused) {
  for (const char* text : {"", "maximum", "percentile", "percentile:", "percentile:0",
                           "percentile:100.1", "percentile:x", "percentile:9 "}) {
    EXPECT_THAT(parse_scale_method(text).status().message(), HasSubstr("wanted max, mse, or"))
        << text;
  }
}

std::vector<int32_t> tokens(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> out(n);
  for (int32_t& t : out) t = static_cast<int32_t>(rng.below(288));
  return out;
}

std::filesystem::path tiny(const char* name) {
  return std::filesystem::path(KVANT_TEST_DATA) / "models" / name;
}

void expect_same_channels(std::span<const ChannelMagnitudes> got,
                          std::span<const ChannelMagnitudes> want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].octave(), want[i].octave());
    EXPECT_EQ(got[i].zeros(), want[i].zeros());
    EXPECT_TRUE(std::ranges::equal(got[i].counters(), want[i].counters()));
  }
}

void expect_same(std::span<const LayerRanges> got, std::span<const LayerRanges> want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t l = 0; l < got.size(); ++l) {
    for (const auto side : {&LayerRanges::query, &LayerRanges::key, &LayerRanges::value}) {
      ASSERT_EQ((got[l].*side).heads.size(), (want[l].*side).heads.size());
      for (size_t h = 0; h < (got[l].*side).heads.size(); ++h) {
        const HeadRange &a = (got[l].*side).heads[h], &b = (want[l].*side).heads[h];
        EXPECT_EQ(a.low, b.low);
        EXPECT_EQ(a.high, b.high);
        expect_same_channels(a.channels, b.channels);
        EXPECT_TRUE(std::equal(a.magnitudes.counters().begin(), a.magnitudes.counters().end(),
                               b.magnitudes.counters().begin()));
      }
    }
  }
}

TEST(RangeStatistics, NeitherThreadsNorChunksMatter) {
  std::vector<LayerRanges> want;
  for (const auto& [num_threads, chunk] : {std::pair{1, 512}, {2, 512}, {1, 64}, {2, 128}}) {
    ThreadPool threads(num_threads);
    const auto model = Model::load(tiny("llama"), {}, threads);
    RangeStatistics ranges((*model)->info(), {.channels = true}, threads);
    RowObserver* const observer = &ranges;
    for (const size_t length : {200u, 70u, 1u})
      ASSERT_TRUE(observe(**model, threads, tokens(length, length), chunk, {&observer, 1}).ok());
    if (want.empty()) want.assign(ranges.layers().begin(), ranges.layers().end());
    expect_same(ranges.layers(), want);
  }
}

// Keeps the rows of one layer.
class KeepingCache final : public ForwardingCache {
 public:
  using ForwardingCache::ForwardingCache;
  Status append(int layer, const float* k, const float* v, const float* k_pre_rope) override {
    const CacheLayer& of = options().layers[1];
    const auto heads = static_cast<size_t>(of.num_kv_heads);
    if (layer == 1) k_.assign(k, k + 100 * heads * static_cast<size_t>(of.key_dim));
    if (layer == 1) v_.assign(v, v + 100 * heads * static_cast<size_t>(of.value_dim));
    return ForwardingCache::append(layer, k, v, k_pre_rope);
  }
  std::vector<float> k_, v_;
};

TEST(RangeStatistics, AreTheRangesOfWhatTheCacheIsGiven) {
  ThreadPool threads(1);
  const auto model = Model::load(tiny("llama"), {}, threads);
  const std::vector<int32_t> text = tokens(100, 7);
  CacheOptions options;
  options.layers = (*model)->info().cache_layers;
  const auto cache = KvCache::create(options, threads);
  KeepingCache keeping(**cache);
  const ForwardItem item{(*cache)->create_sequence().value(), text};
  std::vector<float> hidden(128 * static_cast<size_t>((*model)->info().hidden_size));
  ASSERT_TRUE((*model)->forward(keeping, {&item, 1}, hidden.data()).ok());

  for (const size_t skipped : {0u, 64u}) {
    RangeStatistics ranges((*model)->info(), {.skipped = static_cast<int64_t>(skipped)}, threads);
    RowObserver* const observer = &ranges;
    ASSERT_TRUE(observe(**model, threads, text, 128, {&observer, 1}).ok());
    for (const auto& [side, rows] : {std::pair{&ranges.layers()[1].key, &keeping.k_},
                                     {&ranges.layers()[1].value, &keeping.v_}}) {
      const size_t heads = side->heads.size(), dim = static_cast<size_t>(side->dim);
      for (size_t h = 0; h < heads; ++h) {
        std::vector<float> seen;
        for (size_t i = 0; i < dim; ++i) {
          float low = INFINITY, high = -INFINITY;
          for (size_t t = skipped; t < 100; ++t) {
            const float x = bf16((*rows)[(t * heads + h) * dim + i]);
            low = std::min(low, x), high = std::max(high, x);
            seen.push_back(x);
          }
          EXPECT_EQ(side->heads[h].low[i], low);
          EXPECT_EQ(side->heads[h].high[i], high);
        }
        const Magnitudes want = magnitudes_of(seen);
        EXPECT_EQ(side->heads[h].magnitudes.count(), static_cast<int64_t>(seen.size()));
        EXPECT_EQ(side->heads[h].magnitudes.percentile(99), want.percentile(99));
      }
    }
  }
}

TEST(RangeStatistics, RotatedOnesAreThoseOfTurnedRows) {
  ThreadPool threads(2);
  const auto model = Model::load(tiny("qwen3"), {}, threads);
  const ModelInfo& info = (*model)->info();
  RangeStatistics plain(info, {}, threads), rotated(info, {.rotated = true}, threads);
  ObservedRows rows{.num_tokens = 1,
                    .num_heads = info.cache_layers[0].num_kv_heads,
                    .dim = info.cache_layers[0].key_dim};
  std::vector<float> ones(static_cast<size_t>(rows.num_heads * rows.dim), 1.0f);
  rows.rows = ones.data();
  plain.see_keys(rows);
  rotated.see_keys(rows);
  AlignedArray<float> want(static_cast<size_t>(rows.dim));
  std::fill_n(want.data(), rows.dim, 1.0f);
  Rotation(rows.dim, 0, RotationSigns::kSeeded).turn(want.data(), 1);
  const HeadRange &as_is = plain.layers()[0].key.heads[0],
                  &turned = rotated.layers()[0].key.heads[0];
  EXPECT_TRUE(std::equal(turned.low.begin(), turned.low.end(), want.data()));
  EXPECT_TRUE(std::equal(turned.high.begin(), turned.high.end(), want.data()));
  EXPECT_NE(as_is.low, turned.low);
  EXPECT_GT(turned.magnitudes.largest(), 1);
}

TEST(Resume, GoesOnToTheSameBits) {
  const TempFolder folder;
  const std::filesystem::path file = folder.path() / kStateName;
  ThreadPool threads(2);
  const auto model = Model::load(tiny("llama"), {}, threads);
  const ModelInfo& info = (*model)->info();
  const auto read = [&](KeyStatistics& keys, RangeStatistics& ranges, uint64_t document) {
    RowObserver* const observers[] = {&keys, &ranges};
    ASSERT_TRUE(observe(**model, threads, tokens(150 + document, document), 64, observers).ok());
  };
  KeyStatistics whole_keys(info, threads), keys(info, threads), later_keys(info, threads);
  RangeStatistics whole(info, {.channels = true}, threads),
      ranges(info, {.channels = true}, threads), later(info, {.channels = true}, threads);
  for (uint64_t d = 0; d < 4; ++d) read(whole_keys, whole, d);
  for (uint64_t d = 0; d < 2; ++d) read(keys, ranges, d);
  ASSERT_TRUE(
      save_state(file, {.identity = "x", .documents = 2, .tokens = 301}, {&keys, &ranges}).ok());

  EXPECT_THAT(load_state(file, "y", {&later_keys, &later}).status().message(),
              HasSubstr("is of another calibration"));
  const auto state = load_state(file, "x", {&later_keys, &later});
  ASSERT_TRUE(state.ok()) << state.status().message();
  EXPECT_EQ(state->documents, 2);
  EXPECT_EQ(state->tokens, 301);
  for (uint64_t d = 2; d < 4; ++d) read(later_keys, later, d);
  expect_same(later.layers(), whole.layers());
  const KeyStatistics &got = later_keys, &want = whole_keys;
  for (size_t l = 0; l < want.layers().size(); ++l) {
    for (size_t h = 0; h < want.layers()[l].heads.size(); ++h) {
      EXPECT_EQ(got.layers()[l].heads[h].key, want.layers()[l].heads[h].key);
      EXPECT_EQ(got.layers()[l].heads[h].query, want.layers()[l].heads[h].query);
      EXPECT_EQ(got.layers()[l].heads[h].num_keys, want.layers()[l].heads[h].num_keys);
    }
  }
  EXPECT_EQ(load_state(folder.path() / "none", "x", {}).status().code(), Code::kNotFound);
}

TEST(Resume, SumsThatNoneCanBeAreRefused) {
  const TempFolder folder;
  const std::filesystem::path file = folder.path() / kStateName;
  ThreadPool threads(1);
  const auto model = Model::load(tiny("llama"), {}, threads);
  KeyStatistics keys((*model)->info(), threads);
  HeadMoments& head = keys.layers()[1].heads[0];
  const auto said = [&] {
    EXPECT_TRUE(save_state(file, {.identity = "x"}, {&keys}).ok());
    const Status status = load_state(file, "x", {&keys}).status();
    EXPECT_EQ(status.code(), Code::kCorrupt);
    return status.message();
  };
  head.key[3] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(said(), HasSubstr("'moments.1.0.key' holds numbers that no sum can be"));
  head.key[3] = 0;
  head.num_keys = -1;
  EXPECT_THAT(said(), HasSubstr("moments.1.0.counts"));
  head.num_keys = 0;
  ASSERT_TRUE(save_state(file, {.identity = "x", .documents = -1}, {&keys}).ok());
  EXPECT_THAT(load_state(file, "x", {&keys}).status().message(),
              HasSubstr("documents is missing or negative"));
}

TEST(Overlap, CountsLinesThatBothHave) {
  const std::string line = "A line of more than thirty-two bytes, ";
  const std::string text = line + "one\n" + line + "two  \r\nshort\n" + line + "two\n";
  const std::vector<int64_t> known = line_hashes(text);
  EXPECT_EQ(known.size(), 2u);
  const Overlap overlap = overlap_of("  " + line + "two\n" + line + "three\nshort\n", known);
  EXPECT_EQ(overlap.shared, 1);
  EXPECT_EQ(overlap.lines, 2);
  EXPECT_EQ(overlap_of("", known).lines, 0);
}

}  // namespace
}  // namespace kvant
