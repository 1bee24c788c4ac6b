// What a row computes doesn't depend on its batch, on the threads, or on how a prompt was cut, to
// the bit, in every format.
#include <gtest/gtest.h>

#include "base/rng.h"
#include "formats/tested_formats.h"
#include "model_harness.h"
#include "random_model.h"

namespace kvant {
namespace {

const std::filesystem::path kLlama = std::filesystem::path(KVANT_TEST_DATA) / "models" / "llama";

std::vector<int32_t> tokens(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> out(n);
  for (int32_t& t : out) t = static_cast<int32_t>(rng.below(288));
  return out;
}

// Heads of 128 channels, which every group size divides.
const RandomModel& wide() {
  static const RandomModel model({.layers = 1});
  return model;
}

class DecoderBits : public ::testing::TestWithParam<std::string> {
 protected:
  // Hidden states of one prompt alone in a fresh cache.
  std::vector<float> alone(TestModel& model, const std::vector<int32_t>& prompt, size_t chunk = 0) {
    auto cache = model.cache(GetParam());
    return model.feed(*cache, cache->create_sequence().value(), prompt, chunk);
  }
};

// E6 for every registered format.
TEST_P(DecoderBits, APromptIsTheSameInABatchOfNine) {
  TestModel model(wide().path(), {});
  auto cache = model.cache(GetParam());
  std::vector<std::vector<int32_t>> prompts;
  std::vector<ForwardItem> items;
  size_t total = 0;
  for (size_t i = 0; i < 9; ++i)
    prompts.push_back(tokens(std::vector<size_t>{150, 1, 64, 65, 63, 128, 7, 130, 90}[i], i));
  for (const auto& prompt : prompts) {
    items.push_back({cache->create_sequence().value(), prompt});
    total += prompt.size();
  }
  std::vector<float> hidden(total * model.hidden_size());
  const Status status = model.decoder().forward(*cache, items, hidden.data());
  ASSERT_TRUE(status.ok()) << status.message();
  size_t at = 0;
  for (const auto& prompt : prompts) {
    const std::vector<float> want = alone(model, prompt);
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_EQ(hidden[at + i], want[i]) << prompt.size() << " tokens";
    at += want.size();
  }
}

TEST_P(DecoderBits, NeitherThreadsNorPageAlignedChunksMatter) {
  TestModel one(wide().path(), {}, 1), two(wide().path(), {}, 2);
  const std::vector<int32_t> prompt = tokens(230, 4);
  const std::vector<float> whole = alone(one, prompt);
  EXPECT_EQ(alone(two, prompt), whole) << "two threads";
  EXPECT_EQ(alone(one, prompt, 64), whole);
  EXPECT_EQ(alone(two, prompt, 128), whole);
}

TEST_P(DecoderBits, AnyChunksGiveTheSameWhenInvariant) {
  TestModel model(wide().path(), {.invariant = true});
  const std::vector<int32_t> prompt = tokens(140, 5);
  const std::vector<float> whole = alone(model, prompt);
  for (size_t chunk : {1, 7, 100})
    EXPECT_EQ(alone(model, prompt, chunk), whole) << "chunks of " << chunk;
}

// Formats unlike one another.
std::vector<std::string> few_formats() {
  return {"bf16",       "int8_token", "int8_channel_z_rot", "int4_token_z_lsq_rot",
          "int2_g32_z", "fp8_e4m3"};
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) { return info.param; }
// Slow builds take few: what a decoder asks of a cache is the same in all, and the cache's own
// tests go through every kind.
INSTANTIATE_TEST_SUITE_P(Formats, DecoderBits,
                         ::testing::ValuesIn(kSlowBuild ? few_formats() : tested_formats()),
                         test_name);

// Longer than the widest chunks.
class LongPromptBits : public DecoderBits {};

TEST_P(LongPromptBits, ChunksUpTo512GiveTheSame) {
  TestModel model(wide().path(), {});
  const std::vector<int32_t> prompt = tokens(700, 4);
  const std::vector<float> whole = alone(model, prompt);
  for (size_t chunk : {64, 128, 512}) EXPECT_EQ(alone(model, prompt, chunk), whole) << chunk;
}

TEST_P(LongPromptBits, AnyChunksGiveTheSameWhenInvariant) {
  TestModel model(wide().path(), {.invariant = true});
  const std::vector<int32_t> prompt = tokens(700, 5);
  const std::vector<float> whole = alone(model, prompt);
  for (size_t chunk : {1, 7, 500}) EXPECT_EQ(alone(model, prompt, chunk), whole) << chunk;
}

INSTANTIATE_TEST_SUITE_P(Few, LongPromptBits, ::testing::ValuesIn(few_formats()), test_name);

TEST(Decoder, ATokenOutsideTheVocabularyIsRefusedAndNothingChanges) {
  TestModel model(kLlama, {});
  auto cache = model.cache("bf16");
  const SequenceId sequence = cache->create_sequence().value();
  std::vector<float> hidden(model.hidden_size());
  for (int32_t token : {-1, 288}) {
    const ForwardItem item{sequence, {&token, 1}};
    EXPECT_EQ(model.decoder().forward(*cache, {&item, 1}, hidden.data()).code(),
              Code::kInvalidArgument);
  }
  EXPECT_EQ(cache->length(sequence).value(), 0);
}

TEST(Decoder, WeightTypesOnTheCommandLineAreKnown) {
  EXPECT_EQ(parse_weight_type("q8_0").value(), WeightType::kQ8_0);
  EXPECT_EQ(parse_weight_type("int8").status().message(),
            "'int8' isn't one of native, f32, bf16, q8_0, q4_0");
}

TEST(Decoder, EveryWeightTypeStaysCloseToFloat32) {
  TestModel reference(kLlama, {.weights = WeightType::kF32});
  auto cache = reference.cache("f32");
  const std::vector<int32_t> prompt = tokens(70, 6);
  const std::vector<float> want = reference.feed(*cache, cache->create_sequence().value(), prompt);
  double size = 0;
  for (float x : want) size += static_cast<double>(x) * x;
  // Relative error of hidden states after three layers: rounding of weights and activations to
  // bf16, 8 and 4 bits.
  const std::pair<WeightType, double> bounds[] = {{WeightType::kNative, 0.02},
                                                  {WeightType::kBf16, 0.02},
                                                  {WeightType::kQ8_0, 0.15},
                                                  {WeightType::kQ4_0, 1.0}};
  for (const auto& [type, bound] : bounds) {
    TestModel model(kLlama, {.weights = type});
    auto kv = model.cache("f32");
    const std::vector<float> got = model.feed(*kv, kv->create_sequence().value(), prompt);
    double error = 0;
    for (size_t i = 0; i < got.size(); ++i)
      error += std::pow(static_cast<double>(got[i]) - want[i], 2);
    EXPECT_LT(std::sqrt(error / size), bound) << static_cast<int>(type);
  }
}

}  // namespace
}  // namespace kvant
