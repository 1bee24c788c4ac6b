#include "cache/read_rule.h"

#include <gtest/gtest.h>

#include <string>

namespace kvant {
namespace {

constexpr int64_t kT = kPageTokens;

std::string name(const ReadRule& r) {
  return std::to_string(r.seals) + "/" + std::to_string(r.sink_pages) + "/" +
         std::to_string(r.exact_pages) + "/" + std::to_string(r.window);
}

template <typename Visit>
void for_each_rule(Visit visit) {
  for (const bool seals : {false, true}) {
    for (const int sinks : {0, 1, 3}) {
      for (const int exact : {0, 1, 4}) {
        for (const int window : {0, 1, 8, 63, 64, 65, 200})
          visit(ReadRule{seals, sinks, exact, window});
      }
    }
  }
}

TEST(ReadRule, APageIsReadSealedOnceItLiesBeforeTheBlockAndTheExactWindow) {
  const ReadRule rule{.seals = true, .sink_pages = 1, .exact_pages = 0, .window = 0};
  EXPECT_FALSE(reads_sealed(rule, 0, 100)) << "a sink stays exact";
  EXPECT_FALSE(reads_sealed(rule, 1, 1)) << "a query's own page is exact";
  EXPECT_TRUE(reads_sealed(rule, 1, 2));
  const ReadRule wide{.seals = true, .sink_pages = 0, .exact_pages = 2, .window = 0};
  EXPECT_FALSE(reads_sealed(wide, 1, 3));
  EXPECT_TRUE(reads_sealed(wide, 1, 4));
  EXPECT_FALSE(reads_sealed({.seals = false}, 1, 4)) << "exact formats never seal";
}

// The design's own words: page j lies entirely before floor(t/64)·64 − W.
TEST(ReadRule, EqualsTheDesignsSentenceForEveryPosition) {
  for_each_rule([](const ReadRule& rule) {
    for (int64_t t = 0; t < 12 * kT; ++t) {
      for (int64_t j = 0; j <= t / kT; ++j) {
        const bool before = (j + 1) * kT <= t / kT * kT - rule.exact_pages * kT;
        const bool sink = j * kT < rule.sink_pages * kT;
        ASSERT_EQ(reads_sealed(rule, j, page_of(t)), rule.seals && before && !sink)
            << name(rule) << " " << t << " " << j;
      }
    }
  });
}

TEST(ReadRule, CaseC11_AQuerySeesExactlyItsWindow) {
  const ReadRule rule{.window = 8};
  for (int64_t t = 0; t < 200; ++t) {
    EXPECT_EQ(t - first_visible(rule, t) + 1, std::min<int64_t>(t + 1, 8));
    for (int64_t j = 0; j <= page_of(t); ++j)
      EXPECT_EQ(sees_page(rule, j, t), (j + 1) * kT > first_visible(rule, t));
  }
}

// What a sequence of n tokens holds is what the queries from n on may ask for: nothing that one of
// them needs is missing.
TEST(ReadRule, HeldPagesServeEveryLaterQuery) {
  for_each_rule([](const ReadRule& rule) {
    for (int64_t n = 1; n < 7 * kT; n += 13) {
      for (int64_t t = n; t < n + 3 * kT; t += 5) {
        for (int64_t j = page_of(first_visible(rule, t)); j < num_pages(n); ++j) {
          ASSERT_TRUE(holds_page(rule, j, n))
              << name(rule) << " length " << n << " query " << t << " page " << j;
          // It is read exact only if it still is, and sealed if it already is.
          const bool now = reads_sealed(rule, j, page_of(n));
          ASSERT_TRUE(!now || reads_sealed(rule, j, page_of(t)));
        }
      }
    }
  });
}

TEST(ReadRule, CountsAreThoseOfPageByPage) {
  for_each_rule([](const ReadRule& rule) {
    for (int64_t n = 0; n < 12 * kT; n += 7) {
      PageCounts slow;
      for (int64_t j = 0; j < num_pages(n); ++j) {
        if (!holds_page(rule, j, n)) continue;
        ++(reads_sealed(rule, j, page_of(n)) ? slow.sealed : slow.exact);
      }
      const PageCounts fast = held_pages(rule, n);
      ASSERT_EQ(fast.sealed, slow.sealed) << name(rule) << " length " << n;
      ASSERT_EQ(fast.exact, slow.exact) << name(rule) << " length " << n;
    }
  });
}

}  // namespace
}  // namespace kvant
