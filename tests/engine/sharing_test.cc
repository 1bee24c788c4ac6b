// Prefixes and samples: the same tokens whatever the cache held.
#include <cstring>

#include "engine/sharing_harness.h"

namespace kvant {
namespace {

// The same prompt three times, then one that shares its first pages; with a sliding layer, too.
TEST_F(SharingTest, CaseC1_CaseC17_AHitGivesTheTokensOfAMissInEveryFormat) {
  int window = 0;
  for_each_format([&](const FormatPair& formats) {
    window = 100 - window;
    const toy::ToyOptions toy = {.window = window};
    const GenerationRequest first = request_of(150, 1, 4);
    GenerationRequest second = first;
    for (size_t i = 130; i < 150; ++i) second.prompt[i] ^= 1;
    open(formats, {}, toy);
    const Finished cold = alone(first), cold_second = alone(second);
    open_shared(formats, {}, toy);
    for (int time = 0; time < 3; ++time) {
      const Told told = ask(first);
      EXPECT_EQ(told.answer.tokens, cold.tokens) << formats.name();
      EXPECT_EQ(told.cached, time == 0 ? 0 : 128) << formats.name();
    }
    const Told told = ask(second);
    EXPECT_EQ(told.answer.tokens, cold_second.tokens) << formats.name();
    EXPECT_EQ(told.cached, 128) << formats.name();
    EXPECT_EQ(used_bytes(), 0u);
    check();
  });
}

// Hidden states by bits, from a prefix and from nothing.
TEST_F(SharingTest, CaseC17_AHitComputesTheSameBits) {
  int window = 0;
  for_each_format([&](const FormatPair& formats) {
    window = 70 - window;
    open_shared(formats, {}, {.window = window});
    const std::vector<int32_t> tokens = toy::random_tokens(200, 5);
    std::vector<float> cold(200 * toy::kHidden), hit(cold.size());
    for (std::vector<float>* hidden : {&cold, &hit}) {
      const KvCache::PrefixHit start = cache_->create_from_prefix(tokens, "").value();
      ASSERT_EQ(start.tokens, hidden == &cold ? 0 : 192) << formats.name();
      for (int64_t at = start.tokens; at < 200;) {
        const int64_t end = at < 192 ? at + 64 : 200;
        const ForwardItem item{
            start.sequence,
            std::span(tokens).subspan(static_cast<size_t>(at), static_cast<size_t>(end - at))};
        ASSERT_TRUE(model_->forward(*cache_, {&item, 1}, hidden->data() + at * toy::kHidden).ok());
        ASSERT_TRUE(
            cache_->publish(start.sequence, std::span(tokens).first(static_cast<size_t>(end)), "")
                .ok());
        at = end;
      }
      ASSERT_TRUE(cache_->release_sequence(start.sequence).ok());
    }
    const size_t tail = 192 * toy::kHidden;
    EXPECT_EQ(std::memcmp(&cold[tail], &hit[tail], 8 * toy::kHidden * sizeof(float)), 0)
        << formats.name();
  });
}

// Prompts around the ends of pages, three times in turn and twice at once.
TEST_F(SharingTest, CaseC2_PromptsOfWholePages) {
  for (const FormatPair& formats : some_formats()) {
    for (const int window : {0, 64, 65, 66}) {
      if (kSlowBuild && window == 64) continue;
      for (const size_t tokens : {63, 64, 65, 127, 128, 129, 192}) {
        open(formats, {}, {.window = window});
        const GenerationRequest request = request_of(tokens, tokens, tokens == 128 ? 70 : 4);
        const Finished cold = alone(request);
        open_shared(formats, {}, {.window = window});
        std::vector<RequestId> twice = {submit(request), submit(request)};
        std::map<RequestId, Finished> done = drain();
        for (const RequestId id : twice) EXPECT_EQ(done.at(id).tokens, cold.tokens) << tokens;
        for (int time = 0; time < 3; ++time) {
          const Told told = ask(request);
          EXPECT_EQ(told.answer.tokens, cold.tokens) << formats.name() << " " << tokens;
          EXPECT_EQ(told.cached, static_cast<int64_t>((tokens - 1) / 64 * 64))
              << formats.name() << " " << tokens << " window " << window;
        }
        check();
      }
    }
  }
}

TEST_F(SharingTest, CaseC15_TenantsNeverShareAPage) {
  open_shared({"int8_token", "int8_token"});
  GenerationRequest request = request_of(200, 1, 3);
  const Told cold = ask(request);
  for (const std::string salt : {"a", "b", "ab"}) {
    request.cache_salt = salt;
    EXPECT_EQ(ask(request).cached, 0) << salt;
    const Told again = ask(request);
    EXPECT_EQ(again.cached, 192) << salt;
    EXPECT_EQ(again.answer.tokens, cold.answer.tokens);
  }
  request.use_prefix_cache = false;
  EXPECT_EQ(ask(request).cached, 0);
  const EngineLoad load = engine_->load();
  EXPECT_EQ(load.prefix_queries, 7 * 200);
  EXPECT_EQ(load.prefix_hits, 3 * 192);
}

// A sliding layer before a full one, windows within a page, of whole pages and between, chunks that
// are longer and shorter than they; prompts that part from the first at any page.
TEST_F(SharingTest, CaseC10_SlidingLayers) {
  for (const int window : {4, 8, 64, 100, 300}) {
    if (kSlowBuild && (window == 8 || window == 64)) continue;
    for (const int chunk : {64, 256}) {
      const toy::ToyOptions toy = {.window = window};
      std::vector<GenerationRequest> requests;
      for (const size_t parts : {600, 576, 500, 320, 190, 60, 0}) {
        GenerationRequest r = request_of(600, 1, 4);
        for (size_t i = parts; i < r.prompt.size(); ++i) r.prompt[i] = (r.prompt[i] + 1) % 256;
        requests.push_back(std::move(r));
      }
      open({"int8_token", "int4_token_z"}, {.chunk = chunk}, toy);
      std::vector<Finished> cold;
      for (const GenerationRequest& r : requests) cold.push_back(alone(r));
      open_shared({"int8_token", "int4_token_z"}, {.chunk = chunk}, toy);
      int64_t cached = 0;
      for (size_t i = 0; i < requests.size(); ++i) {
        const Told told = ask(requests[i]);
        EXPECT_EQ(told.answer.tokens, cold[i].tokens) << window << " " << chunk << " " << i;
        cached += told.cached;
        EXPECT_EQ(ask(requests[i]).cached, 576) << "the same again: all but its last page";
        check();
      }
      // 576, 448, 320, 128 and 0 tokens are common. By steps of a page all of them can be found; by
      // four pages, where steps ended or the window holds them.
      if (chunk == 64 || window == 300) {
        EXPECT_EQ(cached, 576 + 448 + 320 + 128) << window << " " << chunk;
      } else {
        EXPECT_GE(cached, 576 + 256 + 256) << window;
      }
    }
  }
}

// --- Samples

TEST_F(SharingTest, SamplesAreWhatTheirSeedsGiveAlone) {
  for (const FormatPair& formats : some_formats()) {
    std::vector<std::vector<int32_t>> solo;
    GenerationRequest request = request_of(150, 7, 80);
    open(formats, {.chunk = 64}, {.window = 90});
    for (uint64_t i = 0; i < 4; ++i) {
      request.sampling.seed = 7 + i;
      solo.push_back(alone(request).tokens);
    }
    request.sampling.seed = 7;
    request.num_samples = 4;
    for (const bool shared : {false, true}) {
      if (shared) open_shared(formats, {.chunk = 64}, {.window = 90});
      const RequestId id = submit(request);
      EXPECT_EQ(drain_samples(id, 4), solo) << formats.name();
      EXPECT_EQ(engine_->take_stats(id)->new_tokens, 320);
      EXPECT_EQ(used_bytes(), 0u);
    }
  }
}

// Prompts that end in every slot of a page, exact and sealed pages before it.
TEST_F(SharingTest, CaseC7_SamplesPartAtEveryOffset) {
  const FormatPair formats = {"int8_channel_z", "int4_token_z"};
  open_shared(formats, {}, {.window = 70});
  for (size_t tokens = 1; tokens <= 130; tokens += kSlowBuild ? 9 : 1) {
    GenerationRequest request = request_of(tokens, tokens, 5);
    std::vector<std::vector<int32_t>> solo;
    for (uint64_t i = 0; i < 3; ++i) {
      request.sampling.seed = tokens + i;
      solo.push_back(alone(request).tokens);
    }
    request.sampling.seed = tokens;
    request.num_samples = 3;
    const RequestId id = submit(request);
    ASSERT_EQ(drain_samples(id, 3), solo) << tokens;
    ASSERT_EQ(used_bytes(), 0u);
  }
  check();
}

TEST_F(SharingTest, SamplesShareThePromptsPages) {
  open({"bf16", "bf16"});
  GenerationRequest request = request_of(300, 1, 2);
  submit(request);
  engine_->step();
  const uint64_t one = cache_->usage().live_bytes;
  drain();
  request.num_samples = 8;
  submit(request);
  engine_->step();
  EXPECT_EQ(cache_->usage().live_bytes, one) << "all pages are shared until they write";
  EXPECT_EQ(engine_->load().running, 8);
  drain();
  EXPECT_EQ(cache_->usage().live_bytes, 0u);
}

TEST_F(SharingTest, ARequestOfManySamplesFailsAsAWhole) {
  open({"bf16", "bf16"}, {.max_running = 3});
  GenerationRequest request = request_of(10, 1, 3);
  request.num_samples = 4;
  EXPECT_EQ(engine_->submit(request).status().code(), Code::kInvalidArgument);
  request.num_samples = 0;
  EXPECT_EQ(engine_->submit(request).status().code(), Code::kInvalidArgument);
  request.num_samples = 2;
  request.session = engine_->open_session();
  EXPECT_EQ(engine_->submit(request).status().code(), Code::kInvalidArgument);
  request.session = 0;
  request.num_samples = 3;
  submit(request);
  engine_->step();
  EXPECT_EQ(engine_->load().running, 3);
  submit(request_of(10, 2, 3));
  engine_->step();
  EXPECT_EQ(engine_->load().waiting, 1) << "no fourth place";
  drain();
}

}  // namespace
}  // namespace kvant
