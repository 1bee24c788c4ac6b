// What the prefix index finds, and what it gives up first.
#include "cache/prefix_index.h"

#include <gtest/gtest.h>

#include <set>

#include "cache/page_harness.h"

namespace kvant {
namespace {

const ReadRule kFull = {.seals = true, .sink_pages = 1};

std::vector<int> kinds_from(int first, int count) {
  std::vector<int> kinds;
  for (int i = 0; i < count; ++i) kinds.push_back(first + i);
  return kinds;
}

TEST(PrefixIndex, FindsWholePagesAndNothingElse) {
  PageHarness h({kFull}, {});
  const std::vector<int32_t> tokens = tokens_of({1, 2, 3}, 20);
  h.visit(tokens);
  EXPECT_EQ(h.hit(tokens), 192);
  EXPECT_EQ(h.hit(tokens_of({1, 2, 3, 4})), 192);
  EXPECT_EQ(h.hit(tokens_of({1, 2, 4})), 128);
  EXPECT_EQ(h.hit(tokens_of({1, 2}, 63)), 128);
  EXPECT_EQ(h.hit(std::span(tokens).first(63)), 0);
  EXPECT_EQ(h.hit(tokens_of({2, 2, 3})), 0);
  EXPECT_EQ(h.hit(tokens_of({2, 3})), 0) << "the same pages, behind others";
  const SequenceId id = h.start(tokens);
  h.check_rows(id, tokens);
  h.check();
}

// Prompts whose end is a page's: whoever wants the last token's logits leaves it out.
TEST(PrefixIndex, CaseC2_APromptOfWholePagesIsFoundUpToItsLastToken) {
  PageHarness h({kFull}, {});
  const std::vector<int32_t> tokens = tokens_of({1, 2, 3, 4});
  for (int time = 0; time < 3; ++time) {
    EXPECT_EQ(h.hit(std::span(tokens).first(255)), time == 0 ? 0 : 192);
    h.visit(tokens);
  }
  EXPECT_EQ(h.index().num_pages(), 4u);
}

TEST(PrefixIndex, CaseC15_SaltsAndIdentitiesNeverShare) {
  PageHarness h({kFull}, {}, {.identity = "x"});
  const std::vector<int32_t> tokens = tokens_of({1, 2, 3});
  const std::string salts[] = {"", "a", "b", "aa", std::string("a\0", 2), "page", "root"};
  for (size_t i = 0; i < std::size(salts); ++i) {
    EXPECT_EQ(h.hit(tokens, salts[i]), 0) << i;
    h.visit(tokens, 512, salts[i]);
    EXPECT_EQ(h.hit(tokens, salts[i]), 192) << i;
    EXPECT_EQ(h.index().num_pages(), 3 * (i + 1));
  }
  std::set<std::pair<uint64_t, uint64_t>> keys;
  h.index().for_each_slab(
      [&](const Hash128& key, int64_t, size_t, Handle) { keys.emplace(key.low, key.high); });
  PageHarness other({kFull}, {}, {.identity = "y"});
  other.visit(tokens, 512, "a");
  other.index().for_each_slab([&](const Hash128& key, int64_t, size_t, Handle) {
    EXPECT_TRUE(keys.emplace(key.low, key.high).second);
  });
  h.check();
}

// Every key is one of two: pages of other tokens, parents and salts have it.
TEST(PrefixIndex, CaseC15_AForcedCollisionIsNoHit) {
  PageHarness h({kFull}, {}, {.hash = [](const HashInput& input) {
                  return Hash128{.low = input.hash().low % 5, .high = 0};
                }});
  Rng rng(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<int> kinds;
    for (uint64_t n = rng.below(4) + 1; n > 0; --n) kinds.push_back(static_cast<int>(rng.below(3)));
    const std::vector<int32_t> tokens = tokens_of(kinds);
    const std::string salt(rng.below(3), 's');
    const SequenceId id = h.read(tokens, 128, salt);
    h.check_rows(id, tokens);
    ASSERT_TRUE(h.table().release(id).ok());
    const SequenceId hit = h.start(tokens, salt);
    h.check_rows(hit, tokens);
    ASSERT_TRUE(h.table().release(hit).ok());
    ASSERT_LE(h.index().num_pages(), 5u);
  }
}

TEST(PrefixIndex, PagesOfTheRowPathAreFoundOnlyWherePathsAgree) {
  for (const bool agree : {false, true}) {
    PageHarness h({kFull}, {}, {.paths_agree = agree});
    const std::vector<int32_t> tokens = tokens_of({1, 2, 3, 4});
    const SequenceId id = h.start(tokens);
    for (const int64_t end : {64, 128, 160, 192, 256}) {  // page 2 in two parts
      ASSERT_TRUE(h.append(id, tokens, end).ok());
      ASSERT_TRUE(h.publish(id, std::span(tokens).first(static_cast<size_t>(end))).ok());
    }
    EXPECT_EQ(h.hit(tokens), agree ? 256 : 128);
    EXPECT_EQ(h.index().num_pages(), agree ? 4u : 2u);
    h.check();
  }
}

TEST(PrefixIndex, TwoThatCompleteTheSamePagePublishOne) {
  PageHarness h({kFull, {.seals = false, .window = 100}}, {});
  const std::vector<int32_t> tokens = tokens_of({1, 2, 3}, 10);
  const SequenceId a = h.start(tokens), b = h.start(tokens);
  for (const int64_t end : {128, 202}) {
    for (const SequenceId id : {a, b}) {
      ASSERT_TRUE(h.append(id, tokens, end).ok());
      ASSERT_TRUE(h.publish(id, std::span(tokens).first(static_cast<size_t>(end))).ok());
    }
  }
  // Pages 0 to 2 once; of the windows pages 1 and 2 once; each its own open page, of both groups.
  // Page 0 of the window was published when it was seen last.
  EXPECT_EQ(h.pool().live_slabs(), 3u + 3u + 4u);
  for (const SequenceId id : {a, b}) {
    h.check_rows(id, tokens);
    ASSERT_TRUE(h.table().release(id).ok());
  }
  EXPECT_EQ(h.pool().live_slabs(), 6u);
  EXPECT_EQ(h.pool().cached_bytes(), 6 * PageHarness::kSlabBytes);
  h.check();
}

TEST(PrefixIndex, RefusesAPageUnderAnotherName) {
  PageHarness h({kFull}, {});
  const std::vector<int32_t> tokens = tokens_of({1, 2});
  const SequenceId id = h.read(tokens, 512, "a");
  ASSERT_TRUE(h.append(id, tokens_of({1, 2, 3}), 192).ok());
  EXPECT_EQ(h.publish(id, tokens_of({1, 2, 3}), "b").code(), Code::kInvalidArgument);
  // A fork that forgot what was published, told of other tokens.
  const KvCache::Fork fork = h.table().fork(id, 64).value();
  EXPECT_EQ(h.publish(fork.sequence, tokens_of({7}), "a").code(), Code::kInvalidArgument);
  EXPECT_EQ(h.index().num_pages(), 2u);
  h.check();
}

// --- Windows

// Pages [0, end) of a chain, read in steps of whole pages.
TEST(PrefixIndex, CaseC10_AHitNeedsWhatEveryWindowSees) {
  // Windows of 4 and 8 tokens see a part of one page, one of 100 two or three.
  PageHarness h({{.seals = true, .window = 4},
                 {.seals = false, .window = 8},
                 {.seals = true, .window = 100},
                 kFull},
                {});
  const std::vector<int32_t> tokens = tokens_of(kinds_from(1, 12), 30);
  ASSERT_TRUE(h.table().release(h.read(tokens, 256)).ok());
  // Steps ended at 256, 512, 768 and 798; only there the windows' pages were in slabs. At 798 the
  // window of 100 begins in page 10, at 768 it showed pages 10 and 11.
  for (int pages = 12; pages > 0; --pages) {
    std::vector<int> kinds = kinds_from(1, pages);
    kinds.push_back(77);
    const int64_t expected = pages >= 12 ? 768 : pages >= 8 ? 512 : pages >= 4 ? 256 : 0;
    const std::vector<int32_t> other = tokens_of(kinds);
    EXPECT_EQ(h.hit(other), expected) << pages;
    const SequenceId id = h.start(other);
    h.check_rows(id, other);
    ASSERT_TRUE(h.append(id, other, static_cast<int64_t>(other.size())).ok());
    h.check_rows(id, other);
    ASSERT_TRUE(h.table().release(id).ok());
  }
  h.check();
}

// A prompt that ends behind a page's start loses what its last boundary shows, unless a step ends
// there.
TEST(PrefixIndex, ALastBoundaryIsUsableIfAStepEndedThere) {
  for (const bool stops : {false, true}) {
    PageHarness h({{.seals = true, .window = 128}}, {});
    const std::vector<int32_t> tokens = tokens_of(kinds_from(1, 15), 63);
    const SequenceId id = h.start(tokens);
    for (const int64_t end : {int64_t{512}, stops ? int64_t{960} : 1023, int64_t{1023}}) {
      if (end == h.sequence(id).length) continue;
      ASSERT_TRUE(h.append(id, tokens, end).ok());
      ASSERT_TRUE(h.publish(id, std::span(tokens).first(static_cast<size_t>(end))).ok());
    }
    EXPECT_EQ(h.hit(tokens), stops ? 960 : 512);
    h.check();
  }
}

// --- Eviction

// Room for `slabs` more, so that others have to go.
void make_room(PageHarness& h, size_t slabs) {
  std::vector<size_t> counts(h.groups().back().sealed_class + 1, 0);
  counts[h.groups().back().sealed_class] = slabs;
  ASSERT_TRUE(h.index().make_room(counts).ok());
  h.check();
}

TEST(PrefixIndex, TheLeastRecentlyUsedChainGoesFirstDeepestPageFirst) {
  PageHarness h({kFull}, {.max_live_bytes = 10 * PageHarness::kSlabBytes});
  h.visit(tokens_of({1, 2, 3}));
  h.visit(tokens_of({1, 2, 4}));
  h.visit(tokens_of({5, 6, 7}));
  h.visit(tokens_of({8, 9}));
  EXPECT_EQ(h.pool().live_slabs(), 9u);
  EXPECT_EQ(h.hit(tokens_of({1, 2, 4})), 192) << "used again";
  make_room(h, 2);
  EXPECT_EQ(h.hit(tokens_of({5, 6, 7})), 192) << "page 3 of {1, 2, 3} went";
  EXPECT_EQ(h.hit(tokens_of({8, 9})), 128);
  EXPECT_EQ(h.hit(tokens_of({1, 2, 4})), 192);
  make_room(h, 3);
  EXPECT_EQ(h.hit(tokens_of({5, 6, 7})), 128);
  EXPECT_EQ(h.hit(tokens_of({1, 2, 3})), 128);
  make_room(h, 4);
  EXPECT_EQ(h.hit(tokens_of({5, 6, 7})), 128) << "it was used after {8, 9} and {1, 2, 4}";
  EXPECT_EQ(h.hit(tokens_of({8, 9})), 64);
  make_room(h, 10);
  EXPECT_EQ(h.index().num_pages(), 0u);
}

TEST(PrefixIndex, WhatASequenceHoldsStays) {
  PageHarness h({kFull}, {.max_live_bytes = 6 * PageHarness::kSlabBytes});
  const std::vector<int32_t> used = tokens_of({1, 2}, 5);
  const SequenceId id = h.read(used);
  h.visit(tokens_of({3, 4}));
  make_room(h, 3);
  EXPECT_EQ(h.hit(tokens_of({3, 4})), 0);
  EXPECT_EQ(h.hit(used), 128);
  h.visit(tokens_of({3, 4}));
  std::vector<size_t> counts(h.groups()[0].sealed_class + 1, 2);
  EXPECT_EQ(h.index().make_room(counts).code(), Code::kExhausted);
  EXPECT_EQ(h.hit(tokens_of({3, 4})), 128) << "nothing goes for what can't be had";
  h.check_rows(id, used);
}

// Two sliding layers for a full one. The middle of a chain goes before any end, the windows of ends
// and of partings last.
TEST(PrefixIndex, WindowsInTheMiddleOfAChainGoFirst) {
  const ReadRule sliding = {.seals = true, .window = 65};  // one page
  PageHarness h({sliding, sliding, kFull}, {.max_live_bytes = 100 * PageHarness::kSlabBytes});
  h.visit(tokens_of({1, 2, 3, 4, 5}), 64);
  h.visit(tokens_of({1, 2, 3, 6, 7}), 64);
  h.visit(tokens_of({8, 9, 10}), 64);
  ASSERT_EQ(h.index().num_pages(), 10u);
  ASSERT_EQ(h.pool().live_slabs(), 30u);
  EXPECT_EQ(h.hit(tokens_of({1, 2, 99})), 128);  // pages 0 and 1 of the first are used last now
  std::vector<std::vector<int>> rest = {{1, 2, 3}, {1, 2, 3, 4, 5}, {1, 2, 3, 6, 7}, {8, 9, 10}};
  make_room(h, 70);
  EXPECT_EQ(h.pool().live_slabs(), 30u);
  const size_t num_spare = 6;  // {1}, {1,2}, {…,4}, {…,6}, {8}, {8,9}
  for (size_t n = 1; n <= num_spare; ++n) {
    make_room(h, 70 + 2 * n);
    EXPECT_EQ(h.pool().live_slabs(), 30 - 2 * n);
    for (const std::vector<int>& kinds : rest) {
      std::vector<int> more = kinds;
      more.push_back(99);
      const SequenceId id = h.start(tokens_of(more));
      EXPECT_EQ(h.sequence(id).length, static_cast<int64_t>(kinds.size()) * 64) << n;
      ASSERT_TRUE(h.table().release(id).ok());
    }
  }
  EXPECT_EQ(h.hit(tokens_of({1, 2, 99})), 0);
  EXPECT_EQ(h.hit(tokens_of({8, 99})), 0);
  EXPECT_EQ(h.index().num_pages(), 10u) << "no end has gone";
  make_room(h, 100);
  EXPECT_EQ(h.pool().live_slabs(), 0u);
  EXPECT_EQ(h.index().num_pages(), 0u);
}

// A sequence that goes on past its prompt leaves its prompt's window to the index alone.
TEST(PrefixIndex, AWindowThatASequenceLeftBehindCanGo) {
  const ReadRule sliding = {.seals = true, .window = 65};
  PageHarness h({sliding, kFull}, {.max_live_bytes = 12 * PageHarness::kSlabBytes});
  const std::vector<int32_t> tokens = tokens_of({1, 2, 3, 4, 5, 6});
  const SequenceId id = h.start(tokens);
  for (int64_t end = 64; end <= 192; end += 64) {
    ASSERT_TRUE(h.append(id, tokens, end).ok());
    ASSERT_TRUE(h.publish(id, std::span(tokens).first(static_cast<size_t>(end))).ok());
  }
  EXPECT_EQ(h.pool().cached_bytes(), 2 * PageHarness::kSlabBytes);
  for (int64_t end = 193; end <= 330; ++end) ASSERT_TRUE(h.append(id, tokens, end).ok()) << end;
  h.check_rows(id, tokens);
  make_room(h, 4);
  EXPECT_EQ(h.pool().cached_bytes(), 0u) << "all that could go";
  h.check_rows(id, tokens);
  ASSERT_TRUE(h.table().release(id).ok());
  EXPECT_EQ(h.hit(tokens), 0) << "the pages of the full group are there, the window isn't";
  make_room(h, 12);
  EXPECT_EQ(h.index().num_pages(), 0u);
}

// Every layer slides: pages that the index has nothing of stay as steps on the way.
TEST(PrefixIndex, ChainsOfSlidingLayersAlone) {
  PageHarness h({{.seals = true, .window = 65}}, {.max_live_bytes = 20 * PageHarness::kSlabBytes});
  const std::vector<int32_t> tokens = tokens_of(kinds_from(1, 6));
  h.visit(tokens, 384);
  EXPECT_EQ(h.index().num_pages(), 6u);
  EXPECT_EQ(h.pool().live_slabs(), 1u);
  EXPECT_EQ(h.hit(tokens), 384);
  EXPECT_EQ(h.hit(tokens_of({1, 2, 3})), 0);
  make_room(h, 20);
  EXPECT_EQ(h.index().num_pages(), 0u);
  h.check();
}

}  // namespace
}  // namespace kvant
