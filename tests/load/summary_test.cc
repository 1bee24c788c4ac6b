// Figures by hand, and the search that reads them.
#include "load/summary.h"

#include <gmock/gmock.h>

#include "load/find_max.h"

namespace kvant::load {
namespace {

using ::testing::HasSubstr;

// Sent at `sent`, its pieces of text at these times, ended at `ended`; all in milliseconds.
RequestRecord success(double sent, std::vector<double> pieces, double ended, int64_t tokens,
                      int64_t prompt = 10) {
  const auto ns = [](double ms) { return static_cast<int64_t>(ms * 1e6); };
  RequestRecord r;
  r.outcome = Outcome::kSuccess;
  r.sent_ns = ns(sent);
  r.ended_ns = ns(ended);
  for (double at : pieces) {
    if (r.first_ns < 0) r.first_ns = ns(at);
    if (r.last_ns >= 0) r.gaps_ns.push_back(ns(at) - r.last_ns);
    r.last_ns = ns(at);
  }
  r.wanted_prompt_tokens = prompt;
  if (tokens >= 0)
    r.usage = Usage{.prompt_tokens = prompt, .completion_tokens = tokens, .cached_tokens = 4};
  return r;
}
RequestRecord failure(Outcome outcome, int status = 0) {
  RequestRecord r;
  r.outcome = outcome;
  r.status = status;
  r.detail = "why";
  r.sent_ns = 0;
  r.ended_ns = 1000000;
  return r;
}
LevelSummary summary_of(const std::vector<RequestRecord>& records, const std::string& slo = "",
                        const TextCounter& count = {}) {
  return summarize(records, slo.empty() ? Slo() : *parse_slo(slo), count);
}

TEST(Summary, CaseF1_FirstTokenGapsAndMeansAreKeptApart) {
  // The first token at 100 ms, then one every 10 ms; an empty last chunk at 500 ms.
  const LevelSummary s = summary_of({success(0, {100, 110, 120, 130, 140}, 500, 5)});
  EXPECT_DOUBLE_EQ(s.ttft.mean, 0.100);
  EXPECT_EQ(s.itl.count, 4) << "the first token is no gap";
  EXPECT_DOUBLE_EQ(s.itl.mean, 0.010);
  EXPECT_DOUBLE_EQ(s.tpot.mean, 0.010);
  EXPECT_DOUBLE_EQ(s.e2e.mean, 0.140) << "the last text, not the last chunk";
  EXPECT_DOUBLE_EQ(s.seconds, 0.5);
  EXPECT_DOUBLE_EQ(s.request_rate, 2);
  EXPECT_DOUBLE_EQ(*s.output_rate, 10);
  EXPECT_DOUBLE_EQ(*s.total_rate, 30);
  EXPECT_DOUBLE_EQ(s.tokens_per_piece, 1);
}

TEST(Summary, CaseF1_OneTokenHasNeitherTpotNorItl) {
  const LevelSummary s = summary_of({success(0, {100}, 110, 1)});
  EXPECT_EQ(s.ttft.count, 1);
  EXPECT_EQ(s.tpot.count, 0);
  EXPECT_EQ(s.itl.count, 0);
  EXPECT_DOUBLE_EQ(s.e2e.mean, 0.1);
}

TEST(Summary, CaseF1_TwoTokenChunks) {
  // Six tokens in three chunks, 20 ms apart: TPOT is by tokens, ITL by chunks, and that is said.
  const LevelSummary s = summary_of({success(0, {100, 120, 140}, 140, 6)});
  EXPECT_DOUBLE_EQ(s.tpot.mean, 0.008);
  EXPECT_DOUBLE_EQ(s.itl.mean, 0.020);
  EXPECT_DOUBLE_EQ(s.tokens_per_piece, 2);
}

TEST(Summary, CaseF2_TheServersCountIsTakenWhateverTheTextLooksLike) {
  // 40 single spaces that a tokenizer would read as a few tokens.
  RequestRecord r = success(0, {1, 2, 3}, 4, 40);
  r.text = std::string(40, ' ');
  const TextCounter seven = [](const std::string&) { return int64_t{7}; };
  LevelSummary s = summary_of({r}, "", seven);
  EXPECT_EQ(s.output_tokens, 40);
  EXPECT_EQ(s.retokenized, 0);
  r.usage.reset();
  s = summary_of({r}, "", seven);
  EXPECT_EQ(s.output_tokens, 7);
  EXPECT_EQ(s.retokenized, 1) << "said, because it may be far off";
}

TEST(Summary, TokensThatNobodyCountedAreMissingNotGuessed) {
  const LevelSummary s = summary_of({success(0, {10, 20}, 30, -1), success(0, {10, 20}, 30, 2)});
  EXPECT_EQ(s.uncounted, 1);
  EXPECT_FALSE(s.output_tokens);
  EXPECT_FALSE(s.output_rate);
  EXPECT_FALSE(s.total_rate);
  EXPECT_EQ(s.tpot.count, 1);
  EXPECT_EQ(s.itl.count, 2);
  EXPECT_EQ(s.prompt_tokens, 20) << "of the one without usage as it was asked for";
  EXPECT_EQ(s.tokens_per_piece, 0);
}

TEST(Summary, WarmUpsAndRequestsCutOffAreNotCounted) {
  RequestRecord warm = success(0, {1000}, 1000, 1);
  warm.counted = false;
  RequestRecord cut = success(0, {}, 0, 0);
  cut.outcome = Outcome::kCutOff;
  const LevelSummary s = summary_of({warm, success(2000, {2010}, 2100, 1), cut});
  EXPECT_EQ(s.succeeded, 1);
  EXPECT_EQ(s.cut_off, 1);
  EXPECT_EQ(s.failed, 0);
  EXPECT_DOUBLE_EQ(s.seconds, 0.1) << "from the first counted request on";
  EXPECT_DOUBLE_EQ(s.ttft.max, 0.01);
}

TEST(Summary, FailuresByKind) {
  const LevelSummary s = summary_of({failure(Outcome::kConnect), failure(Outcome::kStatus, 503),
                                     failure(Outcome::kStatus, 503), failure(Outcome::kStatus, 429),
                                     failure(Outcome::kTimeout), success(0, {1}, 2, 1)});
  EXPECT_EQ(s.failed, 5);
  EXPECT_EQ(s.failures.at("connect"), 1);
  EXPECT_EQ(s.failures.at("HTTP status 503"), 2);
  EXPECT_EQ(s.failures.at("HTTP status 429"), 1);
  EXPECT_EQ(s.failures.at("time-out"), 1);
  EXPECT_DOUBLE_EQ(s.failure_rate(), 5.0 / 6);
  EXPECT_EQ(s.ttft.count, 1);
  const LevelSummary none = summary_of({failure(Outcome::kConnect)});
  EXPECT_FALSE(none.output_rate);
  EXPECT_DOUBLE_EQ(none.request_rate, 0);
  EXPECT_EQ(summary_of({}).seconds, 0);
}

TEST(Summary, GoodputCountsRequestsThatKeepEveryLimit) {
  // TTFT 100 and 300 ms; gaps of 10 ms, once 200 ms.
  const std::vector<RequestRecord> records = {
      success(0, {100, 110, 120}, 120, 3), success(0, {300, 310, 320}, 1000, 3),
      success(0, {100, 300, 310}, 310, 3), failure(Outcome::kTimeout)};
  const auto good = [&](const char* slo) {
    const LevelSummary s = summary_of(records, slo);
    return std::pair(*s.goodput, *s.good_share);
  };
  EXPECT_EQ(good("ttft=200ms,itl=50ms"), std::pair(1.0, 0.25));
  EXPECT_EQ(good("ttft=200ms"), std::pair(2.0, 0.5));
  EXPECT_EQ(good("ttft=300ms"), std::pair(3.0, 0.75)) << "a limit itself is kept";
  EXPECT_EQ(good("tpot=10ms"), std::pair(2.0, 0.5));
  EXPECT_EQ(good("e2e=315ms"), std::pair(2.0, 0.5));
  EXPECT_FALSE(summary_of(records).goodput);
}

TEST(Summary, WhatKeepsALevelFromBeingStableIsSaid) {
  const auto said = [](const std::vector<RequestRecord>& records, const char* slo) {
    return violation(summary_of(records, slo), *parse_slo(slo));
  };
  const RequestRecord r = success(0, {2500, 2600}, 2600, 2);
  EXPECT_EQ(said({r}, "ttft=3s,itl=100ms"), "");
  EXPECT_EQ(said({r}, "ttft=2s"), "P95 TTFT 2.5 s, limit 2 s");
  EXPECT_EQ(said({r}, "itl=50ms"), "P95 ITL 100 ms, limit 50 ms");
  EXPECT_EQ(said({r, failure(Outcome::kTimeout)}, "ttft=3s"),
            "50 % of the requests failed, limit 0 %: why");
  EXPECT_EQ(said({r, failure(Outcome::kTimeout)}, "ttft=3s,failures=50%"), "");
  EXPECT_EQ(said({}, "ttft=3s"), "no request was finished");
}

TEST(Summary, PromptsThatTheServerCountsOtherwiseAreReported) {
  RequestRecord r = success(0, {1}, 2, 1, 10);
  r.wanted_prompt_tokens = 9;
  EXPECT_EQ(summary_of({r}).other_prompt_count, 1);
  EXPECT_EQ(summary_of({r}).prompt_tokens, 10);
  r.wanted_prompt_tokens = -1;
  EXPECT_EQ(summary_of({r}).other_prompt_count, 0);
}

// A server that is stable up to `capacity`.
FoundMax searched(int64_t capacity, int64_t most = 1024) {
  return *find_max(most, [&](int64_t n) -> Result<Probe> {
    return Probe{
        .concurrency = n, .violation = n > capacity ? "too slow" : "", .interrupted = false};
  });
}

TEST(FindMax, SmallOnesAreFoundExactly) {
  for (int64_t capacity = 1; capacity < 32; ++capacity) {
    const FoundMax found = searched(capacity);
    EXPECT_EQ(found.concurrency, capacity);
    EXPECT_EQ(found.reason, "at " + std::to_string(capacity + 1) + ": too slow");
  }
}

TEST(FindMax, LargeOnesToASixteenthInFewProbes) {
  for (int64_t capacity : {100, 333, 777, 1000}) {
    const FoundMax found = searched(capacity, 4096);
    EXPECT_LE(found.concurrency, capacity);
    EXPECT_GE(found.concurrency, capacity - capacity / 16 - 1);
    EXPECT_LE(found.probes.size(), 16u);
  }
}

TEST(FindMax, ItSaysWhyItStopped) {
  EXPECT_EQ(searched(0).concurrency, 0);
  EXPECT_EQ(searched(0).reason, "at 1: too slow");
  EXPECT_EQ(searched(0).probes.size(), 1u);
  const FoundMax all = searched(1 << 20, 100);
  EXPECT_EQ(all.concurrency, 100);
  EXPECT_THAT(all.reason, HasSubstr("100 is the most that was to be tried"));
  EXPECT_EQ(searched(1 << 20, 1).concurrency, 1);
  const FoundMax cut = *find_max(64, [](int64_t n) -> Result<Probe> {
    return Probe{.concurrency = n, .violation = "", .interrupted = n == 8};
  });
  EXPECT_EQ(cut.concurrency, 4);
  EXPECT_TRUE(cut.interrupted);
  EXPECT_EQ(cut.reason, "interrupted at 8");
  EXPECT_EQ(
      find_max(8, [](int64_t) -> Result<Probe> { return io_error("gone"); }).status().message(),
      "gone");
}

}  // namespace
}  // namespace kvant::load
