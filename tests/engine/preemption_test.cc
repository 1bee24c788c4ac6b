// Out of pages: the same tokens whoever had to wait.
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <set>

#include "engine/sharing_harness.h"

namespace kvant {
namespace {

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
  const EngineLoad load = engine_->load();
  EXPECT_GT(load.preemptions, 0);
  EXPECT_EQ(load.refused_files, load.preemptions);
  EXPECT_NE(load.refused_why.find("/nowhere/at/all"), std::string::npos) << load.refused_why;
}

// The memory of what is swapped out has a bound; beyond it answers are computed again, and nobody
// fails or gets other tokens.
TEST_F(SharingTest, SwappingKeepsItsBound) {
  const toy::ToyOptions toy = {.window = 100};
  for (const FormatPair& formats : some_formats()) {
    open(formats, {.chunk = 128}, toy);
    std::vector<Finished> solo;
    for (size_t i = 0; i < 6; ++i) solo.push_back(alone(request_of(100 + 30 * i, i, 150)));
    const uint64_t most = bytes_of(formats, toy, {300, 200, 100});
    const uint64_t of_one = cache_->bytes_at(300) + 128;  // and an image's header
    for (const uint64_t bound : {uint64_t{0}, of_one, 2 * of_one}) {
      open_shared(formats, {.chunk = 128, .max_swap_bytes = bound}, toy, most);
      std::vector<RequestId> ids;
      for (size_t i = 0; i < 6; ++i) ids.push_back(submit(request_of(100 + 30 * i, i, 150)));
      std::map<RequestId, Finished> done;
      uint64_t most_out = 0;
      while (!engine_->idle()) {
        take(engine_->step(), done);
        check();
        most_out = std::max(most_out, cache_->usage().swapped_bytes);
      }
      EXPECT_LE(most_out, bound);
      EXPECT_EQ(most_out > 0, bound > 0);
      EXPECT_GT(engine_->load().preemptions, 0);
      if (bound == 0) {
        EXPECT_EQ(engine_->load().recomputations, engine_->load().preemptions);
      }
      for (size_t i = 0; i < ids.size(); ++i)
        EXPECT_EQ(done.at(ids[i]).tokens, solo[i].tokens) << formats.name() << " request " << i;
      EXPECT_EQ(used_bytes(), 0u);
    }
  }
}

// A session's pages can't be computed again as they were: they find a place beyond the bound.
TEST_F(SharingTest, ASessionIsSwappedOutWhateverTheBound) {
  const FormatPair formats = {"int8_token", "int8_token"};
  open_shared(formats, {.max_swap_bytes = 0}, {}, bytes_of(formats, {}, {300}));
  GenerationRequest first = request_of(150, 1, 5);
  first.session = engine_->open_session();
  alone(first);
  EXPECT_EQ(alone(request_of(250, 3, 20)).finish, FinishReason::kLength);
  EXPECT_GT(cache_->usage().swapped_bytes, 0u);
  EXPECT_EQ(engine_->load().recomputations, 0);
}

// Codes, scales and side blobs leave and come back.
TEST_F(SharingTest, CaseC12_PreemptionKeepsTheBitsOfEveryFormat) {
  bool to_file = false;
  for_each_format([&](const FormatPair& formats) {
    to_file = !to_file;
    open(formats);
    const GenerationRequest old = request_of(20, 1, 170), young = request_of(10, 2, 130);
    const Finished first = alone(old), second = alone(young);
    open_shared(formats, {.swap_folder = to_file ? testing::TempDir() : ""}, {},
                bytes_of(formats, {}, {200, 64}));
    GenerationRequest alone_again = young;
    alone_again.use_prefix_cache = false;
    const RequestId a = submit(old), b = submit(alone_again);
    const std::map<RequestId, Finished> done = drain();
    EXPECT_EQ(done.at(a).tokens, first.tokens) << formats.name();
    EXPECT_EQ(done.at(b).tokens, second.tokens) << formats.name();
    EXPECT_EQ(engine_->load().refused_files, 0);
    num_preemptions_ += engine_->load().preemptions;
  });
  EXPECT_GT(num_preemptions_, 0);
}

// Static mode: the slabs are all there is, class by class.
TEST_F(SharingTest, APreallocatedPoolGivesUpCachedPagesToo) {
  const FormatPair formats = {"int8_token", "int8_token"};
  std::vector<Finished> solo;
  open(formats);
  for (uint64_t i = 0; i < 5; ++i) solo.push_back(alone(request_of(300, i, 40)));
  CacheOptions options = toy::cache_options(*model_, formats);
  options.prefix_cache = true;
  options.preallocate_tokens = 512;
  open_cache(options, {.chunk = 128});
  EXPECT_GE(engine_->context(), 512);
  EXPECT_LT(engine_->context(), 700);
  for (const uint64_t i : {0, 1, 2, 3, 4, 0, 1}) {
    const Told told = ask(request_of(300, i, 40));
    EXPECT_EQ(told.answer.tokens, solo[i].tokens) << told.answer.status.message();
    check();
  }
  std::vector<RequestId> ids;
  for (uint64_t i = 0; i < 5; ++i) ids.push_back(submit(request_of(300, i, 40)));
  const std::map<RequestId, Finished> done = drain();
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(done.at(ids[i]).tokens, solo[i].tokens);
  check();
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
  for (const std::optional<uint64_t> bound : {std::optional<uint64_t>(), {0}}) {
    open_shared(formats, {.max_swap_bytes = bound}, {}, bytes_of(formats, {}, {256, 128}));
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
