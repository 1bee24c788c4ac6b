#include "engine/engine.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "engine/engine_harness.h"
#include "formats/tested_formats.h"

namespace kvant {
namespace {

TEST_F(EngineTest, ABatchGivesEveryRequestItsSoloTokens) {
  for (const FormatPair& formats :
       {FormatPair{"bf16", "bf16"}, FormatPair{"int8_channel_z", "int4_token_z_rot"}}) {
    open(formats, {.chunk = 128});
    std::vector<Finished> solo;
    for (size_t i = 0; i < 6; ++i) solo.push_back(alone(request_of(10 + 61 * i, i)));
    std::vector<RequestId> ids;
    std::map<RequestId, Finished> done;
    for (size_t i = 0; i < 6; ++i) {
      ids.push_back(submit(request_of(10 + 61 * i, i)));
      take(engine_->step(), done);  // the next one joins a batch that runs
    }
    while (!engine_->idle()) take(engine_->step(), done);
    for (size_t i = 0; i < 6; ++i)
      EXPECT_EQ(done.at(ids[i]).tokens, solo[i].tokens) << formats.name() << " request " << i;
    EXPECT_EQ(cache_->usage().live_bytes, 0u);
    EXPECT_TRUE(cache_->check_invariants().ok());
  }
}

TEST_F(EngineTest, TheChunkOfAPrefillDoesNotChangeTheAnswer) {
  open({"int4_channel_z", "int4_token_z"}, {.chunk = 512});
  const Finished whole = alone(request_of(700, 4));
  for (int chunk : {64, 128, 320}) {
    open({"int4_channel_z", "int4_token_z"}, {.chunk = chunk});
    EXPECT_EQ(alone(request_of(700, 4)).tokens, whole.tokens) << chunk;
  }
}

TEST_F(EngineTest, DecodingGoesOnWhileALongPromptIsRead) {
  open({"bf16", "bf16"}, {.chunk = 64});
  const RequestId first = submit(request_of(10, 1, 100));
  engine_->step();
  submit(request_of(640, 2, 1));
  for (int i = 0; i < 9; ++i) {
    const std::vector<GenerationEvent> events = engine_->step();
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].request, first);
  }
  EXPECT_EQ(engine_->step().size(), 2u) << "the tenth chunk ends the prompt";
}

// Full and sliding layers in turn.
TEST_F(EngineTest, CaseC9_AFullContextEndsWithLength) {
  int window = 0;
  for (const FormatInfo& format : all_formats()) {
    if (!is_tested(format)) continue;
    if (!format.for_keys || format.scale_source == ScaleSource::kGiven) continue;
    if (format.needs.artifacts) continue;
    if (!sealed_bits(format, Side::kKey, toy::kDim).ok()) continue;
    window = 40 - window;
    open({format.name, "bf16"}, {.chunk = 64, .context = 100}, {.window = window});
    const Finished f = alone(request_of(90, 3, 40));
    EXPECT_EQ(f.finish, FinishReason::kLength) << format.name << ": " << f.status.message();
    EXPECT_EQ(f.tokens.size(), 11u)
        << format.name << ": ten that the cache takes, one that needs no place";
    EXPECT_EQ(alone(request_of(20, 4, 3)).tokens.size(), 3u) << "the engine lives on";
  }
}

TEST_F(EngineTest, CaseC9_APromptAsLongAsTheContextStillGivesOneToken) {
  open({"bf16", "bf16"}, {.context = 64});
  const Finished f = alone(request_of(64, 3, 40));
  EXPECT_EQ(f.finish, FinishReason::kLength);
  EXPECT_EQ(f.tokens.size(), 1u);
}

TEST_F(EngineTest, CaseD1_APromptThatCannotFitIsRefusedWithBothNumbers) {
  open({"bf16", "bf16"}, {.context = 64});
  EXPECT_EQ(alone(request_of(63, 3, 10000)).tokens.size(), 2u) << "cut at the context";
  EXPECT_EQ(alone(request_of(64, 3, 1)).tokens.size(), 1u);
  EXPECT_EQ(engine_->submit(request_of(64, 3, 0)).status().code(), Code::kInvalidArgument);
  const Status status = engine_->submit(request_of(65, 3)).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("65"), std::string::npos);
  EXPECT_NE(status.message().find("64"), std::string::npos);
  EXPECT_EQ(alone(request_of(5, 1, 3)).tokens.size(), 3u) << "a small one is answered after it";
}

// A pool of 200 tokens: a longer prompt is refused with the numbers, before it waits for anything.
// An answer that fills all of the pool ends there, and takes no other request with it.
TEST_F(EngineTest, CaseD1_WhatThePoolCannotHoldIsRefusedWithTheNumbers) {
  for (const FormatPair& formats : {FormatPair{"bf16", "bf16"}, {"int8_token", "int8_token"}}) {
    open(formats);
    CacheOptions options = toy::cache_options(*model_, formats);
    const int64_t length[] = {200};
    options.max_bytes = plan_cache(options, length)->total_bytes();
    open_cache(options, {.chunk = 64});
    EXPECT_EQ(alone(request_of(150, 3, 5)).tokens.size(), 5u);
    EXPECT_GE(engine_->context(), 200);
    const auto longest = static_cast<size_t>(engine_->context());
    EXPECT_EQ(alone(request_of(longest, 3, 5)).tokens.size(), 1u);
    const Status refused = engine_->submit(request_of(longest + 1, 3, 5)).status();
    EXPECT_EQ(refused.code(), Code::kExhausted);
    for (const uint64_t number :
         {static_cast<uint64_t>(longest), static_cast<uint64_t>(longest) + 1, options.max_bytes})
      EXPECT_NE(refused.message().find(std::to_string(number)), std::string::npos)
          << refused.message();
    EXPECT_EQ(cache_->usage().live_bytes, 0u);

    const int64_t both[] = {200, 64};
    options.max_bytes = plan_cache(options, both)->total_bytes();
    open_cache(options, {.chunk = 64});
    const Finished alone_small = alone(request_of(5, 1, 55));
    const RequestId grows = submit(request_of(220, 3, 10000));
    const RequestId small = submit(request_of(5, 1, 55));
    std::map<RequestId, Finished> done = drain();
    EXPECT_EQ(done.at(small).tokens, alone_small.tokens) << done.at(small).status.message();
    EXPECT_EQ(done.at(grows).finish, FinishReason::kLength) << done.at(grows).status.message();
    EXPECT_EQ(static_cast<int64_t>(done.at(grows).tokens.size()), engine_->context() - 220 + 1);
    EXPECT_EQ(cache_->usage().live_bytes, 0u);
    EXPECT_EQ(alone(request_of(5, 1, 3)).tokens.size(), 3u);
  }
}

TEST_F(EngineTest, CaseD6_BadRequestsAreRefusedAndTheNextOneRuns) {
  open({"bf16", "bf16"});
  std::vector<GenerationRequest> bad(8, request_of(5, 1, 3));
  bad[0].max_tokens = 0;
  bad[1].max_tokens = -1;
  bad[2].prompt.clear();
  bad[3].prompt[2] = toy::kVocab;
  bad[4].prompt[0] = -1;
  bad[5].sampling.temperature = std::numeric_limits<double>::quiet_NaN();
  bad[6].stop = {""};
  bad[7].session = 12345;
  for (const GenerationRequest& request : bad) {
    EXPECT_FALSE(engine_->submit(request).ok());
    EXPECT_EQ(alone(request_of(5, 1, 3)).tokens.size(), 3u);
  }
}

TEST_F(EngineTest, ASessionComputesOnlyWhatIsNew) {
  open({"int8_token", "int8_token"});
  const SessionId session = engine_->open_session();
  GenerationRequest first = request_of(100, 1, 5);
  first.session = session;
  const Finished answer = alone(first);
  std::vector<int32_t> history = first.prompt;
  history.insert(history.end(), answer.tokens.begin(), answer.tokens.end());
  const std::vector<int32_t> more = toy::random_tokens(20, 9);
  history.insert(history.end(), more.begin(), more.end());

  const int64_t before = model_->num_tokens;
  GenerationRequest second = request_of(0, 2, 1);
  second.prompt = history;
  second.session = session;
  const RequestId id = submit(second);
  drain();
  EXPECT_EQ(engine_->take_stats(id)->cached_tokens, 104);  // the last answer token was never fed
  EXPECT_EQ(model_->num_tokens - before, 21);
}

TEST_F(EngineTest, ASessionWhoseHistoryChangedKeepsTheCommonPrefix) {
  open({"bf16", "bf16"});
  const SessionId session = engine_->open_session();
  GenerationRequest first = request_of(100, 1, 5);
  first.session = session;
  alone(first);
  GenerationRequest second = request_of(100, 1, 5);
  second.prompt[70] ^= 1;
  const Finished fresh = alone(second);  // without the session
  second.session = session;
  const RequestId id = submit(second);
  EXPECT_EQ(drain().at(id).tokens, fresh.tokens);
  const int64_t cached = engine_->take_stats(id)->cached_tokens;
  EXPECT_GE(cached, 64);
  EXPECT_LE(cached, 70);
}

// Prompts around the ends of pages, asked three times in one session and twice at once in two more:
// always the answer of a fresh cache. The last token is computed again each time, and where its
// page is sealed, that page.
TEST_F(EngineTest, CaseC1_CaseC2_ARepeatedPromptGivesTheSameAnswer) {
  for (const FormatPair& formats :
       {FormatPair{"bf16", "bf16"}, {"int8_token", "int8_token"}, {"int4_channel_z", "fp8_e4m3"}}) {
    for (const size_t tokens : {63, 64, 65, 127, 128, 129}) {
      open(formats);
      open_cache(toy::cache_options(*model_, formats, 0));
      GenerationRequest request = request_of(tokens, 1, 4);
      const Finished fresh = alone(request);
      const SessionId session = engine_->open_session();
      for (int time = 0; time < 3; ++time) {
        request.session = session;
        const RequestId id = submit(request);
        EXPECT_EQ(drain().at(id).tokens, fresh.tokens) << formats.name() << " " << tokens;
        const int64_t kept = static_cast<int64_t>(tokens) - 1;
        // The prompt and three tokens of its answer were there.
        const bool sealed =
            formats.key != "bf16" && kept / 64 * 64 + 64 <= static_cast<int64_t>(tokens) + 3;
        const int64_t expected = time == 0 ? 0 : sealed ? kept / 64 * 64 : kept;
        EXPECT_EQ(engine_->take_stats(id)->cached_tokens, expected) << formats.name() << tokens;
      }
      std::vector<RequestId> twice;
      for (int i = 0; i < 2; ++i) {
        request.session = engine_->open_session();
        twice.push_back(submit(request));
      }
      const std::map<RequestId, Finished> done = drain();
      for (const RequestId id : twice) EXPECT_EQ(done.at(id).tokens, fresh.tokens);
    }
  }
}

// Two prompts with a common beginning of two pages, in one session: the second finds it.
TEST_F(EngineTest, CaseC1_ACommonBeginningIsFoundInEveryFormat) {
  for (const FormatInfo& format : all_formats()) {
    if (!is_tested(format)) continue;
    if (format.scale_source == ScaleSource::kGiven || format.layout != format.name) continue;
    if (format.rotated || format.needs.artifacts) continue;  // what it rotates is here
    if (!sealed_bits(format, Side::kKey, toy::kDim).ok()) continue;
    open({format.name, format.name}, {}, {.window = 200});
    open_cache(toy::cache_options(*model_, {format.name, format.name}, 0));
    GenerationRequest first = request_of(150, 1, 3), second = first;
    for (size_t i = 128; i < 150; ++i) second.prompt[i] ^= 1;
    const Finished cold = alone(second);
    first.session = second.session = engine_->open_session();
    alone(first);
    const RequestId id = submit(second);
    EXPECT_EQ(drain().at(id).tokens, cold.tokens) << format.name;
    EXPECT_EQ(engine_->take_stats(id)->cached_tokens, 128) << format.name;
  }
}

TEST_F(EngineTest, StopStringsEndTheAnswerAcrossTokens) {
  open({"bf16", "bf16"});
  GenerationRequest request = request_of(30, 11, 40);
  request.sampling.temperature = 0.7;
  const Finished free = alone(request);
  ASSERT_GE(free.text.size(), 12u);
  const std::string stop = free.text.substr(8, 3);
  request.stop = {stop};
  const Finished stopped = alone(request);
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.text, free.text.substr(0, free.text.find(stop)));
}

TEST_F(EngineTest, ARequestThatFailsLeavesTheOthersAlone) {
  open({"bf16", "bf16"});
  const RequestId good = submit(request_of(30, 1, 6));
  GenerationRequest lost = request_of(30, 2, 6);
  lost.session = engine_->open_session();
  const RequestId bad = submit(lost);
  engine_->step();
  // Its sequence disappears under it, as if its pages were lost.
  for (SequenceId id = 0; id < 64; ++id) {
    if (!cache_->length(id).ok()) continue;
    ASSERT_TRUE(cache_->release_sequence(id).ok());
    break;
  }
  std::map<RequestId, Finished> done;
  while (!engine_->idle()) take(engine_->step(), done);
  const bool first_lost = done.at(good).finish == FinishReason::kFailed;
  EXPECT_NE(first_lost, done.at(bad).finish == FinishReason::kFailed) << "exactly one fails";
}

TEST_F(EngineTest, CancelFreesThePages) {
  open({"bf16", "bf16"});
  const RequestId id = submit(request_of(100, 1, 50));
  engine_->step();
  EXPECT_GT(cache_->usage().live_bytes, 0u);
  EXPECT_TRUE(engine_->cancel(id).ok());
  EXPECT_EQ(cache_->usage().live_bytes, 0u);
  EXPECT_EQ(engine_->cancel(id).code(), Code::kNotFound);
}

TEST_F(EngineTest, CaseD5_CharactersAreNeverCut) {
  open({"bf16", "bf16"});
  StreamDecoder decoder(model_->tokenizer());
  std::vector<std::string> shown;
  for (int id : {0xf0, 0x9f, 0x98, 0x80, 0x61, 0xe4, 0xb8}) shown.push_back(decoder.push(id));
  shown.push_back(decoder.flush());
  EXPECT_EQ(shown, (std::vector<std::string>{"", "", "", "\xf0\x9f\x98\x80", "a", "", "",
                                             "\xef\xbf\xbd"}));
}

}  // namespace
}  // namespace kvant
