// Prefixes, samples and preemption: the same tokens whatever the cache held and whoever had to
// wait.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <set>

#include "engine/engine_harness.h"
#include "formats/tested_formats.h"

namespace kvant {
namespace {

class SharingTest : public EngineTest {
 protected:
  // An engine with a prefix cache, of so many bytes at most.
  void open_shared(const FormatPair& formats, EngineOptions options = {}, toy::ToyOptions toy = {},
                   uint64_t max_bytes = 0) {
    engine_.reset();
    cache_.reset();
    model_ = std::make_unique<toy::ToyModel>(toy);
    CacheOptions cache = toy::cache_options(*model_, formats);
    cache.prefix_cache = true;
    cache.max_bytes = max_bytes;
    open_cache(cache, options);
  }
  uint64_t bytes_of(const FormatPair& formats, const toy::ToyOptions& toy,
                    std::vector<int64_t> lengths) {
    const toy::ToyModel model(toy);
    return plan_cache(toy::cache_options(model, formats), lengths)->total_bytes();
  }
  struct Told {
    Finished answer;
    int64_t cached = 0;
  };
  Told ask(GenerationRequest request) {
    const RequestId id = submit(std::move(request));
    Told told;
    told.answer = drain().at(id);
    told.cached = engine_->take_stats(id)->cached_tokens;
    return told;
  }
  void check() {
    const Status status = cache_->check_invariants();
    ASSERT_TRUE(status.ok()) << status.message();
  }
  // Pages that somebody uses.
  uint64_t used_bytes() const { return cache_->usage().live_bytes - cache_->usage().cached_bytes; }
};

const std::vector<FormatPair>& some_formats() {
  static const std::vector<FormatPair> formats = {
      {"bf16", "bf16"}, {"int8_channel_z", "int4_token_z_rot"}, {"fp8_e4m3", "bf16"}};
  return formats;
}

template <typename Fn>
void for_each_format(Fn fn) {
  for (const FormatInfo& format : all_formats()) {
    if (!is_tested(format) || !format.for_keys || !format.for_values) continue;
    if (format.scale_source == ScaleSource::kGiven || format.needs.artifacts) continue;
    if (!sealed_bits(format, Side::kKey, toy::kDim).ok()) continue;
    fn(FormatPair{format.name, format.name});
  }
}

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
    for (const bool shared : {false, true}) {
      open(formats, {.chunk = 64}, {.window = 90});
      std::vector<Finished> alone_of;
      GenerationRequest request = request_of(150, 7, 80);
      for (int i = 0; i < 4; ++i) {
        request.sampling.seed = 7 + static_cast<uint64_t>(i);
        alone_of.push_back(alone(request));
      }
      request.sampling.seed = 7;
      request.num_samples = 4;
      for (int i = 0; i < 4; ++i) {
        if (shared) open_shared(formats, {.chunk = 64}, {.window = 90});
        const RequestId id = submit(request);
        EXPECT_EQ(drain(i).at(id).tokens, alone_of[static_cast<size_t>(i)].tokens)
            << formats.name() << " sample " << i;
        EXPECT_EQ(engine_->take_stats(id)->new_tokens, 320);
        EXPECT_EQ(used_bytes(), 0u);
      }
    }
  }
}

// Prompts that end in every slot of a page, exact and sealed pages before it.
TEST_F(SharingTest, CaseC7_SamplesPartAtEveryOffset) {
  const FormatPair formats = {"int8_channel_z", "int4_token_z"};
  open_shared(formats, {}, {.window = 70});
  for (size_t tokens = 1; tokens <= 130; ++tokens) {
    GenerationRequest request = request_of(tokens, tokens, 5);
    std::vector<Finished> solo;
    for (uint64_t i = 0; i < 3; ++i) {
      request.sampling.seed = tokens + i;
      solo.push_back(alone(request));
    }
    request.sampling.seed = tokens;
    request.num_samples = 3;
    const RequestId id = submit(request);
    std::map<int, std::vector<int32_t>> answers;
    while (!engine_->idle()) {
      for (const GenerationEvent& e : engine_->step()) {
        ASSERT_EQ(e.request, id);
        if (e.token) answers[e.sample].push_back(*e.token);
      }
    }
    for (int i = 0; i < 3; ++i)
      ASSERT_EQ(answers[i], solo[static_cast<size_t>(i)].tokens) << tokens << " sample " << i;
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

// --- Out of pages

TEST_F(SharingTest, WhoIsPreemptedGoesOnWithTheSameTokens) {
  const std::string folder = testing::TempDir();
  for (const FormatPair& formats : some_formats()) {
    for (const bool to_file : {false, true}) {
      const toy::ToyOptions toy = {.window = 100};
      open(formats, {.chunk = 128}, toy);
      std::vector<Finished> solo;
      for (size_t i = 0; i < 5; ++i) solo.push_back(alone(request_of(100 + 30 * i, i, 150)));
      const uint64_t most = bytes_of(formats, toy, {300, 200, 100});
      open_shared(formats, {.chunk = 128, .swap_folder = to_file ? folder : ""}, toy, most);
      std::vector<RequestId> ids;
      for (size_t i = 0; i < 5; ++i) ids.push_back(submit(request_of(100 + 30 * i, i, 150)));
      std::map<RequestId, Finished> done;
      bool seen_out = false;
      while (!engine_->idle()) {
        take(engine_->step(), done);
        check();
        ASSERT_LE(cache_->usage().live_bytes, most);
        seen_out |= engine_->load().preempted > 0;
        if (to_file) {
          EXPECT_EQ(cache_->usage().swapped_bytes, 0u);
        }
      }
      EXPECT_TRUE(seen_out);
      int64_t preemptions = 0;
      for (size_t i = 0; i < ids.size(); ++i) {
        EXPECT_EQ(done.at(ids[i]).tokens, solo[i].tokens) << formats.name() << " request " << i;
        preemptions += engine_->take_stats(ids[i])->preemptions;
      }
      EXPECT_EQ(preemptions, engine_->load().preemptions);
      EXPECT_EQ(used_bytes(), 0u);
      for (const auto& entry : std::filesystem::directory_iterator(folder))
        EXPECT_FALSE(
            entry.path().filename().string().starts_with("kvant-swap-" + std::to_string(getpid())));
    }
  }
}

TEST_F(SharingTest, AFolderThatTakesNoFilesCostsNobodyAnAnswer) {
  const FormatPair formats = {"int8_token", "int8_token"};
  open(formats);
  const Finished first = alone(request_of(100, 1, 200)), second = alone(request_of(100, 2, 200));
  open_shared(formats, {.swap_folder = "/nowhere/at/all"}, {}, bytes_of(formats, {}, {300, 150}));
  const RequestId a = submit(request_of(100, 1, 200)), b = submit(request_of(100, 2, 200));
  const std::map<RequestId, Finished> done = drain();
  EXPECT_EQ(done.at(a).tokens, first.tokens);
  EXPECT_EQ(done.at(b).tokens, second.tokens);
  EXPECT_GT(engine_->load().preemptions, 0);
}

TEST_F(SharingTest, TheNewestLeavesAndComesBackBeforeAnyoneStarts) {
  const FormatPair formats = {"bf16", "bf16"};
  open_shared(formats, {}, {}, bytes_of(formats, {}, {256, 192}));
  const RequestId old = submit(request_of(120, 1, 130));
  const RequestId young = submit(request_of(120, 2, 100));
  std::vector<RequestId> order;
  RequestId late = 0;
  while (!engine_->idle()) {
    for (const GenerationEvent& e : engine_->step()) {
      if (e.finish != FinishReason::kRunning) order.push_back(e.request);
    }
    if (engine_->load().preempted > 0 && late == 0) late = submit(request_of(10, 3, 2));
    if (engine_->load().preempted > 0) {
      EXPECT_EQ(engine_->load().waiting, 1);
    }
  }
  ASSERT_NE(late, 0u);
  EXPECT_EQ(order[0], old);
  EXPECT_EQ(engine_->take_stats(old)->preemptions, 0);
  EXPECT_GT(engine_->take_stats(young)->preemptions, 0);
}

// What the index alone holds counts as free: it goes before anyone has to leave.
TEST_F(SharingTest, CachedPagesGoFirst) {
  const FormatPair formats = {"int8_token", "int8_token"};
  const uint64_t most = bytes_of(formats, {}, {400, 400});
  open_shared(formats, {}, {}, most);
  for (uint64_t i = 0; i < 6; ++i) ask(request_of(300, i, 5));
  EXPECT_GT(cache_->usage().cached_bytes, most / 2);
  EXPECT_EQ(cache_->room().free_bytes, most);
  const RequestId a = submit(request_of(350, 8, 20)), b = submit(request_of(350, 9, 20));
  drain();
  EXPECT_EQ(engine_->load().preemptions, 0);
  EXPECT_EQ(engine_->take_stats(a)->cached_tokens + engine_->take_stats(b)->cached_tokens, 0);
  check();
}

// A session that waits for its next request holds pages; who needs them gets them.
TEST_F(SharingTest, AnIdleSessionMakesRoomAndIsBackInTime) {
  const FormatPair formats = {"int8_token", "int8_token"};
  open(formats);
  GenerationRequest first = request_of(150, 1, 5), second = first;
  const SessionId plain = engine_->open_session();
  first.session = second.session = plain;
  const Finished answer = alone(first);
  second.prompt.insert(second.prompt.end(), answer.tokens.begin(), answer.tokens.end());
  second.prompt.push_back(7);
  const Finished expected = alone(second);
  const Finished big = alone(request_of(250, 3, 20));

  open_shared(formats, {}, {}, bytes_of(formats, {}, {300}));
  first.session = second.session = engine_->open_session();
  EXPECT_EQ(alone(first).tokens, answer.tokens);
  EXPECT_GT(used_bytes(), 0u);
  EXPECT_EQ(alone(request_of(250, 3, 20)).tokens, big.tokens);
  EXPECT_EQ(used_bytes(), 0u);
  EXPECT_GT(cache_->usage().swapped_bytes, 0u);
  const RequestId id = submit(second);
  EXPECT_EQ(drain().at(id).tokens, expected.tokens);
  EXPECT_EQ(engine_->take_stats(id)->cached_tokens, 154);
  EXPECT_TRUE(engine_->close_session(first.session).ok());
  EXPECT_EQ(used_bytes(), 0u);
}

TEST_F(SharingTest, CancelFreesPagesWhereverTheyAre) {
  const FormatPair formats = {"int8_token", "int8_token"};
  open_shared(formats, {}, {}, bytes_of(formats, {}, {256, 128}));
  std::vector<RequestId> ids;
  for (uint64_t i = 0; i < 3; ++i) ids.push_back(submit(request_of(10, i, 240)));
  while (engine_->load().preempted == 0) {
    ASSERT_FALSE(engine_->step().empty());
  }
  for (const RequestId id : {ids[1], ids[2], ids[0]}) {
    EXPECT_TRUE(engine_->cancel(id).ok());
    check();
  }
  EXPECT_EQ(used_bytes(), 0u);
  EXPECT_EQ(cache_->usage().swapped_bytes, 0u);
  EXPECT_TRUE(engine_->idle());
}

// A step's tokens are a budget, of which decoding takes its share first.
TEST_F(SharingTest, DecodingAndPromptsShareTheBudget) {
  open({"bf16", "bf16"}, {.chunk = 128});
  for (uint64_t i = 0; i < 3; ++i) submit(request_of(5, i, 100));
  engine_->step();
  submit(request_of(640, 9, 5));
  const int64_t before = model_->num_tokens;
  engine_->step();
  EXPECT_EQ(model_->num_tokens - before, 3 + 64) << "125 are left: one page";
}

// --- All of it at once

// Random requests in a pool of a few pages: every one ends, with the tokens that it has alone.
TEST_F(SharingTest, CaseC4_CaseD8_ASmallPoolGivesEveryoneTheirSoloTokens) {
  const int rounds = kSlowBuild ? 1 : 3;
  uint64_t seed = 0;
  int64_t hits = 0;
  for (const FormatPair& formats : some_formats()) {
    for (int round = 0; round < rounds; ++round) {
      Rng rng(++seed);
      SCOPED_TRACE("seed " + std::to_string(seed));
      const int windows[] = {0, 50, 130};
      const toy::ToyOptions toy = {.window = windows[rng.below(3)]};
      std::vector<GenerationRequest> requests;
      for (uint64_t i = 0; i < (kSlowBuild ? 12u : 24u); ++i) {
        GenerationRequest r =
            request_of(1 + rng.below(250), rng.below(4), 1 + static_cast<int64_t>(rng.below(70)));
        r.sampling.seed = rng.below(100);
        r.cache_salt = rng.below(4) == 0 ? "other" : "";
        r.use_prefix_cache = rng.below(8) != 0;
        r.num_samples = rng.below(4) == 0 ? 3 : 1;
        requests.push_back(std::move(r));
      }
      open(formats, {}, toy);
      std::vector<std::vector<std::vector<int32_t>>> solo;
      for (const GenerationRequest& r : requests) {
        solo.emplace_back();
        for (int i = 0; i < r.num_samples; ++i) {
          GenerationRequest one = r;
          one.num_samples = 1;
          one.sampling.seed += static_cast<uint64_t>(i);
          solo.back().push_back(alone(one).tokens);
        }
      }
      const uint64_t most = bytes_of(formats, toy, {330, 130});
      open_shared(
          formats,
          {.chunk = 64 << rng.below(3), .max_running = static_cast<int64_t>(3 + rng.below(6))}, toy,
          most);
      std::map<RequestId, size_t> index;
      std::map<std::pair<size_t, int>, std::vector<int32_t>> tokens;
      std::set<size_t> cancelled;
      size_t next = 0;
      EngineLoad before;
      int64_t steps = 0;
      while (next < requests.size() || !engine_->idle()) {
        ASSERT_LT(++steps, 20000) << "nobody gets on";
        while (next < requests.size() && rng.below(3) != 0) {
          index[submit(requests[next])] = next;
          ++next;
        }
        if (rng.below(60) == 0 && !index.empty()) {
          const auto it = std::next(index.begin(), static_cast<ptrdiff_t>(rng.below(index.size())));
          if (engine_->cancel(it->first).ok()) cancelled.insert(it->second);
        }
        for (const GenerationEvent& e : engine_->step()) {
          ASSERT_TRUE(e.status.ok()) << e.status.message();
          if (e.token) tokens[{index.at(e.request), e.sample}].push_back(*e.token);
        }
        check();
        const EngineLoad load = engine_->load();
        ASSERT_LE(cache_->usage().live_bytes, most);
        ASSERT_LE(cache_->usage().cached_bytes, cache_->usage().live_bytes);
        ASSERT_GE(load.prefix_hits, before.prefix_hits);
        ASSERT_GE(load.preemptions, before.preemptions);
        ASSERT_LE(load.prefix_hits, load.prefix_queries);
        before = load;
      }
      EXPECT_GT(before.preemptions, 0);
      hits += before.prefix_hits;
      for (size_t i = 0; i < requests.size(); ++i) {
        if (cancelled.contains(i)) continue;
        for (int s = 0; s < requests[i].num_samples; ++s) {
          EXPECT_EQ((tokens[{i, s}]), solo[i][static_cast<size_t>(s)])
              << formats.name() << " request " << i << " sample " << s;
        }
      }
      EXPECT_EQ(used_bytes(), 0u);
      EXPECT_EQ(cache_->usage().swapped_bytes, 0u);
    }
  }
  EXPECT_GT(hits, 0);
}

TEST_F(SharingTest, AnExactWindowRefusesAPrefixCache) {
  toy::ToyModel model;
  CacheOptions options = toy::cache_options(model, {"int8_token", "int8_token"});
  options.prefix_cache = true;
  options.exact_window = 64;
  const Status status = KvCache::create(options, threads_).status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("64"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace kvant
