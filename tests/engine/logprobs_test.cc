// Log-probabilities of answers and prompts, and answers of a least length.
#include "engine/logprobs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/engine_harness.h"

namespace kvant {
namespace {

class LogprobsTest : public EngineTest {
 protected:
  std::vector<GenerationEvent> events_of(GenerationRequest request) {
    submit(std::move(request));
    std::vector<GenerationEvent> out;
    while (!engine_->idle()) {
      for (GenerationEvent& event : engine_->step()) out.push_back(std::move(event));
    }
    return out;
  }

  std::vector<TokenLogprobs> prompt_scores(std::vector<int32_t> prompt, int top = 0) {
    GenerationRequest request;
    request.prompt = std::move(prompt);
    request.max_tokens = 0;
    request.prompt_logprobs = top;
    const std::vector<GenerationEvent> events = events_of(std::move(request));
    EXPECT_EQ(events.size(), 1u);
    EXPECT_EQ(events.front().finish, FinishReason::kLength) << events.front().status.message();
    EXPECT_FALSE(events.front().token);
    return events.front().prompt_logprobs;
  }
};

TEST(Logprobs, AreOfTheWholeDistribution) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.125f), std::log(0.375f),
                                     -std::numeric_limits<float>::infinity()};
  const TokenLogprobs out = logprobs_of(logits, 1, 3);
  EXPECT_EQ(out.chosen.token, 1);
  EXPECT_NEAR(out.chosen.logprob, std::log(0.125), 1e-6);
  ASSERT_EQ(out.top.size(), 3u);
  EXPECT_EQ(out.top[0].token, 0);
  EXPECT_EQ(out.top[1].token, 2);
  EXPECT_NEAR(out.top[1].logprob, std::log(0.375), 1e-6);
  EXPECT_EQ(out.top[2].token, 1);
  EXPECT_EQ(logprobs_of(logits, 3, 9).top.size(), 4u);
  EXPECT_EQ(logprobs_of(logits, 3, 0).chosen.logprob, -std::numeric_limits<double>::infinity());
}

TEST(Logprobs, AmongEqualsTheLowerIdIsFirst) {
  const TokenLogprobs out = logprobs_of(std::vector<float>{1, 2, 2, 2}, 0, 2);
  EXPECT_EQ(out.top[0].token, 1);
  EXPECT_EQ(out.top[1].token, 2);
}

TEST_F(LogprobsTest, GreedyTokensAreTheBest) {
  open({"int8_token", "int8_token"});
  GenerationRequest request = request_of(100, 3);
  request.sampling = {};
  request.logprobs = 2;
  for (const GenerationEvent& event : events_of(request)) {
    ASSERT_TRUE(event.logprobs);
    EXPECT_EQ(event.logprobs->chosen.token, event.token);
    ASSERT_EQ(event.logprobs->top.size(), 2u);
    EXPECT_EQ(event.logprobs->top[0].token, event.token);
    EXPECT_EQ(event.logprobs->top[0].logprob, event.logprobs->chosen.logprob);
    EXPECT_LE(event.logprobs->top[1].logprob, event.logprobs->chosen.logprob);
  }
}

TEST_F(LogprobsTest, SamplingAndPenaltiesDontChangeThem) {
  open({"int8_token", "int8_token"});
  GenerationRequest request = request_of(100, 3, 1);
  request.logprobs = 258;
  request.sampling = {};
  const TokenLogprobs plain = *events_of(request).front().logprobs;
  request.sampling = {.temperature = 3, .top_k = 40, .repeat_penalty = 2, .seed = 8};
  const TokenLogprobs sampled = *events_of(request).front().logprobs;
  for (size_t i = 0; i < plain.top.size(); ++i) {
    EXPECT_EQ(plain.top[i].token, sampled.top[i].token);
    EXPECT_EQ(plain.top[i].logprob, sampled.top[i].logprob);
  }
}

// What was written, read as a prompt, has the log-probabilities it was written with.
TEST_F(LogprobsTest, APromptScoresAsItWasWritten) {
  open({"int8_token", "int8_token"});
  GenerationRequest request = request_of(150, 4, 80);
  request.logprobs = 0;
  std::vector<int32_t> all = request.prompt;
  std::vector<double> written;
  for (const GenerationEvent& event : events_of(request)) {
    all.push_back(*event.token);
    written.push_back(event.logprobs->chosen.logprob);
  }
  const std::vector<TokenLogprobs> read = prompt_scores(all);
  ASSERT_EQ(read.size(), all.size() - 1);
  for (size_t i = 0; i < written.size(); ++i) {
    EXPECT_EQ(read[149 + i].chosen.token, all[150 + i]);
    EXPECT_EQ(read[149 + i].chosen.logprob, written[i]) << "token " << i;
  }
}

TEST_F(LogprobsTest, PromptsScoreAlikeInAnyCompanyAndChunk) {
  const std::vector<int32_t> prompt = toy::random_tokens(300, 5);
  open({"int4_g32", "int4_g32"});
  const std::vector<TokenLogprobs> alone = prompt_scores(prompt, 1);
  ASSERT_EQ(alone.size(), 299u);
  CacheOptions options = toy::cache_options(*model_, {"int4_g32", "int4_g32"});
  options.prefix_cache = true;
  open_cache(options, {.chunk = 64});
  GenerationRequest scored;
  scored.prompt = prompt;
  scored.max_tokens = 2;
  scored.prompt_logprobs = 1;
  scored.num_samples = 2;
  submit(request_of(200, 9));
  const RequestId plain = submit(request_of(300, 5));  // publishes the prompt's pages
  std::map<RequestId, Finished> done = drain();
  EXPECT_EQ(done.at(plain).finish, FinishReason::kLength);
  submit(request_of(100, 11));
  const RequestId id = submit(scored);
  std::vector<TokenLogprobs> read;
  while (!engine_->idle()) {
    for (GenerationEvent& event : engine_->step()) {
      if (event.request != id || event.prompt_logprobs.empty()) continue;
      EXPECT_TRUE(read.empty()) << "told once";
      EXPECT_EQ(event.sample, 0);
      read = std::move(event.prompt_logprobs);
    }
  }
  ASSERT_EQ(read.size(), alone.size());
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].chosen.token, prompt[i + 1]);
    EXPECT_EQ(read[i].chosen.logprob, alone[i].chosen.logprob) << "token " << i + 1;
    EXPECT_EQ(read[i].top[0].token, alone[i].top[0].token);
  }
  EXPECT_EQ(engine_->take_stats(id)->cached_tokens, 0);
}

TEST_F(LogprobsTest, AnAnswerHasItsLeastLength) {
  open({"bf16", "bf16"});
  GenerationRequest request = request_of(40, 6, 200);
  request.ignore_end = false;
  request.sampling = {.temperature = 20, .seed = 1};  // nearly even: the end comes soon
  size_t plain = events_of(request).size();
  ASSERT_LT(plain, 190u) << "this seed never ends; take another";
  request.min_tokens = 190;
  const std::vector<GenerationEvent> events = events_of(request);
  EXPECT_GE(events.size(), 190u);
  for (size_t i = 0; i < 190; ++i) EXPECT_NE(events[i].token, toy::kEnd);
}

TEST_F(LogprobsTest, StopStringsWaitForTheLeastLength) {
  open({"bf16", "bf16"});
  GenerationRequest request = request_of(40, 6, 24);
  request.sampling = {};
  const Finished whole = alone(request);
  ASSERT_GE(whole.text.size(), 10u);
  request.stop = {whole.text.substr(0, 1)};
  EXPECT_EQ(alone(request).text, "");
  request.min_tokens = 24;
  EXPECT_GE(alone(request).tokens.size(), 24u);
}

TEST_F(LogprobsTest, WhatIsOutOfRangeIsRefusedByName) {
  open({"bf16", "bf16"});
  const auto refusal = [&](auto change) {
    GenerationRequest request = request_of(10, 1);
    change(request);
    const Result<RequestId> id = engine_->submit(request);
    EXPECT_EQ(id.status().code(), Code::kInvalidArgument);
    return id.status().message();
  };
  EXPECT_EQ(refusal([](auto& r) { r.max_tokens = 0; }), "max_tokens is 0, wanted at least 1");
  EXPECT_EQ(refusal([](auto& r) { r.min_tokens = 13; }),
            "min_tokens is 13, wanted 0 to max_tokens, which is 12");
  EXPECT_EQ(refusal([](auto& r) { r.logprobs = -1; }), "logprobs is -1, wanted 0 to 258");
  EXPECT_EQ(refusal([](auto& r) { r.prompt_logprobs = 259; }),
            "prompt_logprobs is 259, wanted 0 to 258");
  EXPECT_NE(refusal([&](auto& r) {
              r.prompt_logprobs = 0;
              r.session = engine_->open_session();
            }).find("session"),
            std::string::npos);
}

}  // namespace
}  // namespace kvant
