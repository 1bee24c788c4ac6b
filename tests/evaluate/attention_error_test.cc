#include "evaluate/attention_error.h"

#include <gtest/gtest.h>

#include "engine/toy_model.h"
#include "evaluate/lockstep.h"
#include "evaluate/recommend.h"

namespace kvant {
namespace {

class AttentionErrorTest : public testing::Test {
 protected:
  AttentionErrors errors(const FormatPair& formats, toy::ToyOptions toy = {}, int chunk = 128) {
    toy::ToyModel model(toy);
    const auto trace = trace_attention(model, threads_, toy::random_tokens(400, 5), chunk);
    EXPECT_TRUE(trace.ok()) << trace.status().message();
    return errors_of(model, *trace, toy::cache_options(model, formats));
  }
  AttentionErrors errors_of(const Model&, const AttentionTrace& trace, const CacheOptions& cache) {
    auto result = attention_errors(trace, cache, threads_);
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result.ok() ? *result : AttentionErrors();
  }
  ThreadPool threads_{2};
};

TEST_F(AttentionErrorTest, ExactFormatsHaveNone) {
  for (const char* format : {"bf16", "f32"}) {
    for (const int chunk : {1, 64, 300}) {
      const AttentionErrors e = errors({format, format}, {.window = 100}, chunk);
      ASSERT_EQ(e.layers.size(), 2u);
      EXPECT_EQ(e.all.scores, 0) << format;
      EXPECT_EQ(e.all.outputs, 0) << format;
    }
  }
}

TEST_F(AttentionErrorTest, FewerBitsErrMoreAndEachSideByItself) {
  const double int8 = errors({"int8_token", "bf16"}).all.scores;
  const double int4 = errors({"int4_token", "bf16"}).all.scores;
  EXPECT_GT(int8, 1e-4);
  EXPECT_GT(int4, 8 * int8) << "16 times coarser";
  EXPECT_LT(int4, 40 * int8);
  const AttentionErrors values = errors({"bf16", "int4_token"});
  EXPECT_EQ(values.all.scores, 0) << "the keys are exact";
  EXPECT_GT(values.all.outputs, 0.01);
}

// int4 per token: a step of max|k| / 7, where max|k| of 32 Gaussian channels is 2.1 sigma, and
// rounding that knows nothing of the query: step / sqrt(12) of the keys' size, over the tokens that
// are sealed, 256 of 352 on average.
TEST_F(AttentionErrorTest, IsWhatRoundingPredicts) {
  const double predicted = 2.1 / 7 / std::sqrt(12.0) * std::sqrt(256.0 / 352);
  const AttentionErrors e = errors({"int4_token", "bf16"});
  for (const std::vector<AttentionError>& layer : e.heads) {
    ASSERT_EQ(layer.size(), static_cast<size_t>(toy::kKvHeads));
    for (const AttentionError& head : layer) {
      EXPECT_GT(head.scores, 0.7 * predicted);
      EXPECT_LT(head.scores, 1.4 * predicted) << "the toy's keys are only about Gaussian";
    }
  }
}

// Scales that were given are those that a layer is judged with.
TEST_F(AttentionErrorTest, GivenScalesAreUsed) {
  toy::ToyModel model;
  const AttentionTrace trace =
      trace_attention(model, threads_, toy::random_tokens(400, 5), 128).value();
  CacheOptions cache = toy::cache_options(model, {"int8_tensor", "int8_head"});
  for (CacheLayer& layer : cache.layers) layer.key_scale = 0.15f;
  const AttentionErrors fine = errors_of(model, trace, cache);
  for (CacheLayer& layer : cache.layers) layer.key_scale = 8 * 0.15f;
  const AttentionErrors coarse = errors_of(model, trace, cache);
  EXPECT_GT(coarse.all.scores, 4 * fine.all.scores);
  for (CacheLayer& layer : cache.layers)
    layer.value_head_scales.assign(static_cast<size_t>(layer.num_kv_heads), 2.0f);
  EXPECT_GT(errors_of(model, trace, cache).all.outputs, 2 * fine.all.outputs);
}

TEST_F(AttentionErrorTest, CaseB11_ExactlyTheLayersWithAHugeKeyBiasAreFlagged) {
  toy::ToyModel model({.layers = 5, .biased_layers = {0, 4}, .sharpness = 0.03f});
  const std::vector<int32_t> tokens = toy::random_tokens(400, 5);
  const AttentionTrace trace = trace_attention(model, threads_, tokens, 128).value();
  const FormatPair int4 = {"int4_token", "int4_token"};
  CacheOptions cache = toy::cache_options(model, int4);
  const AttentionErrors per_token = errors_of(model, trace, cache);
  EXPECT_EQ(sensitive_layers(per_token), (std::vector<int>{0, 4}));
  for (const int layer : {0, 4}) {
    EXPECT_GT(per_token.layers[static_cast<size_t>(layer)].outputs, kRuined) << layer;
    EXPECT_GT(per_token.layers[static_cast<size_t>(layer)].scores, kRuined)
        << layer << ": measured against what the bias leaves alone";
  }
  // A grid per channel doesn't see a constant, and exact layers have no error.
  EXPECT_TRUE(
      sensitive_layers(
          errors_of(model, trace, toy::cache_options(model, {"int4_channel_z", "int4_token"})))
          .empty());
  for (const size_t layer : {0, 4}) cache.layers[layer].formats = {"bf16", "bf16"};
  EXPECT_TRUE(sensitive_layers(errors_of(model, trace, cache)).empty());

  // At eight bits only those two layers are lost: the recommendation refuses the format, and takes
  // it once they are kept. (Of the toy, four bits anywhere are too few.)
  const auto recommended = [&](const CacheOptions& options) {
    const EvaluatedRun run{"int8", options};
    const EvaluationResult r = evaluate(model, threads_, tokens, {&run, 1}, {}).value()[0];
    const Candidate candidate{"int8", false, r.effective_bits, r.kld.mean, r.kld.p99, r.top1, 0};
    return recommend({&candidate, 1}, {.kld = 0.03, .kld_p99 = 0.15, .top1 = 0.5}, 0).name;
  };
  cache = toy::cache_options(model, {"int8_token", "int8_token"});
  EXPECT_EQ(sensitive_layers(errors_of(model, trace, cache)), (std::vector<int>{0, 4}));
  EXPECT_EQ(recommended(cache), "bf16");
  for (const size_t layer : {0, 4}) cache.layers[layer].formats = {"bf16", "bf16"};
  EXPECT_EQ(recommended(cache), "int8");
}

TEST_F(AttentionErrorTest, AnOutlierIsNoticedAmongGoodLayers) {
  AttentionErrors e;
  for (const double output : {0.02, 0.03, 0.02, 0.2, 0.02}) {
    e.layers.push_back({.scores = 0, .outputs = output});
    e.heads.push_back({e.layers.back()});
  }
  EXPECT_EQ(sensitive_layers(e), (std::vector<int>{3}));
  for (AttentionError& layer : e.layers) layer.outputs /= 10;
  EXPECT_TRUE(sensitive_layers(e).empty()) << "all are good";
  for (AttentionError& layer : e.layers) layer.outputs = 0.6;
  EXPECT_EQ(sensitive_layers(e).size(), 5u) << "all are ruined";
}

TEST_F(AttentionErrorTest, ShortTextsAreRefused) {
  toy::ToyModel model;
  EXPECT_EQ(trace_attention(model, threads_, toy::random_tokens(127, 5), 64).status().code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvant
