#include "evaluate/recommend.h"

#include <gtest/gtest.h>

#include <limits>

namespace kvant {
namespace {

const Candidate kBf16{"bf16", true, 16, 0, 0, 1, 100};

Recommendation choose(std::vector<Candidate> candidates) {
  candidates.insert(candidates.begin(), kBf16);
  return recommend(candidates, {.kld = 0.005, .kld_p99 = 0.05, .top1 = 0.95}, kBf16.decode_tok_s);
}

TEST(Recommend, TakesTheFewestBitsThatAreGoodEnough) {
  EXPECT_EQ(choose({{"int8", false, 8.5, 1e-5, 1e-4, 1, 120},
                    {"int4", false, 4.8, 4e-3, 0.04, 0.97, 120},
                    {"int2", false, 3, 0.1, 1, 0.8, 120}})
                .name,
            "int4");
}

TEST(Recommend, CaseF7_AFineMeanWithADamagedTailIsRefused) {
  const Recommendation r = choose(
      {{"int8", false, 8.5, 1e-5, 1e-4, 1, 120}, {"int4", false, 4.8, 1e-3, 0.4, 0.99, 120}});
  EXPECT_EQ(r.name, "int8");
  EXPECT_NE(r.reason.find("int4 at 4.80 bits is refused: P99"), std::string::npos) << r.reason;
}

TEST(Recommend, WhatReadMostlyExactPagesIsNotRecommended) {
  const Recommendation r = choose({{"int2", false, 9.2, 0, 0, 1, 0, 0.0}});
  EXPECT_EQ(r.name, "bf16");
  EXPECT_NE(r.reason.find("longer --context"), std::string::npos) << r.reason;
}

TEST(Recommend, AgreementCounts) {
  EXPECT_EQ(choose({{"int4", false, 4.8, 1e-3, 0.01, 0.94, 120}}).name, "bf16");
}

TEST(Recommend, ASlowFormatComesAfterAFastOne) {
  EXPECT_EQ(
      choose({{"int8", false, 8.5, 1e-5, 1e-4, 1, 120}, {"int4", false, 4.8, 1e-3, 0.01, 0.99, 80}})
          .name,
      "int8");
  EXPECT_EQ(choose({{"int4", false, 4.8, 1e-3, 0.01, 0.99, 80}}).name, "int4")
      << "unless nothing else will do";
  EXPECT_EQ(
      choose({{"int8", false, 8.5, 1e-5, 1e-4, 1, 0}, {"int4", false, 4.8, 1e-3, 0.01, 0.99, 0}})
          .name,
      "int4")
      << "speed that wasn't measured doesn't count";
}

TEST(Recommend, NothingGoodEnoughGivesBf16AndSaysWhy) {
  const Recommendation r = choose({{"int2", false, 3, 0.1, 1, 0.8, 120}});
  EXPECT_EQ(r.name, "bf16");
  EXPECT_NE(r.reason.find("int2"), std::string::npos);
}

TEST(Recommend, ANanIsNotGoodEnough) {
  EXPECT_EQ(
      choose({{"int4", false, 4.8, std::numeric_limits<double>::quiet_NaN(), 0.01, 0.99, 120}})
          .name,
      "bf16");
}

}  // namespace
}  // namespace kvant
