// Scores and weighted sums straight from pages, against the decoded rows in double precision.
#include <algorithm>
#include <cstring>

#include "codec_helpers.h"
#include "formats/decoded_codec.h"

namespace kvant {
namespace {

constexpr size_t kT = kPageTokens;
constexpr int kQueries = 5;

Rows queries_for(int dim, uint64_t seed) {
  Rng rng(seed);
  Rows q(static_cast<size_t>(kQueries * dim));
  for (float& x : q) x = rng.normal() / std::sqrt(static_cast<float>(dim));
  return q;
}

Rows scores_of(const Bound& bound, const AlignedArray<std::byte>& page, const Rows& queries) {
  const auto dim = static_cast<size_t>(bound.dim);
  const int count = static_cast<int>(queries.size() / dim);
  AlignedArray<std::byte> prepared(bound.codec->query_bytes(count));
  bound.codec->prepare_query(queries.data(), count, prepared.data());
  Rows scores(static_cast<size_t>(count) * kT, NAN);
  bound.codec->scores(page.data(), prepared.data(), count, 0, scores.data(), kT);
  return scores;
}

// Sums of one V page in the model's basis, starting from zero.
Rows sums_of(const Bound& bound, const AlignedArray<std::byte>& page, const Rows& p) {
  const auto dim = static_cast<size_t>(bound.dim);
  const int count = static_cast<int>(p.size() / kT);
  Rows acc(static_cast<size_t>(count) * dim, 0.0f);
  bound.codec->accumulate(page.data(), p.data(), kT, count, acc.data(), dim);
  bound.codec->finish(acc.data(), count, dim);
  return acc;
}

Rows probabilities(uint64_t seed) {
  Rng rng(seed);
  Rows p(kQueries * kT);
  for (float& x : p) x = static_cast<float>(rng.uniform());
  std::fill_n(p.begin(), kT, 0.0016f);  // query 0: one token holds nearly all the mass
  p[17] = 0.9f;
  std::fill_n(p.begin() + kT, kT, 0.0f);  // query 1: none
  return p;
}

// Queries of 16 bits leave about 2^-15 of the vectors' sizes, those beside small codes a share of
// 1/36 steps.
double score_tolerance(const Bound& bound) { return has_small_codes(bound) ? 1.5e-2 : 2e-4; }

// Probabilities of 16 bits are off by at most half a step each, weighted by codes that span the
// values' range; dithered bytes by up to a step, in either direction.
double sum_tolerance(const Bound& bound, const Rows& p, size_t query, const Rows& decoded) {
  const auto [low, high] = std::minmax_element(decoded.begin(), decoded.end());
  const auto first = p.begin() + static_cast<std::ptrdiff_t>(query * kT);
  const auto largest = static_cast<double>(*std::max_element(first, first + kT));
  const auto range = static_cast<double>(*high - *low);
  if (has_small_codes(bound)) return 4 * std::sqrt(kT) * 0.5 * largest / 255 * range;
  return 1e-6 + kT * 0.5 * largest / 32639 * 2 * range;
}

TEST(EveryKeyCodec, ScoresLikeItsDecodedRows) {
  for_every_codec([](const Bound& bound) {
    if (bound.side != Side::kKey || bound.shares_layout()) return;
    const auto dim = static_cast<size_t>(bound.dim);
    Rows rows = gaussian_rows(bound.dim, kTestSeed);
    for (size_t t = 0; t < kT; ++t)
      rows[t * dim + 7] += 4.0f;  // a channel with an offset, as keys have
    const auto page = bound.encode(rows);
    const Rows decoded = bound.decode(page);
    const Rows queries = queries_for(bound.dim, kTestSeed + 1);
    const Rows scores = scores_of(bound, page, queries);
    for (size_t q = 0; q < kQueries; ++q) {
      for (size_t t = 0; t < kT; ++t) {
        double exact = 0;
        double q2 = 0;
        double k2 = 0;
        for (size_t i = 0; i < dim; ++i) {
          exact += static_cast<double>(queries[q * dim + i]) * decoded[t * dim + i];
          q2 += static_cast<double>(queries[q * dim + i]) * queries[q * dim + i];
          k2 += static_cast<double>(decoded[t * dim + i]) * decoded[t * dim + i];
        }
        ASSERT_NEAR(scores[q * kT + t], exact, score_tolerance(bound) * std::sqrt(q2 * k2))
            << "query " << q << ", token " << t;
      }
    }
  });
}

TEST(EveryValueCodec, SumsLikeItsDecodedRows) {
  for_every_codec([](const Bound& bound) {
    if (bound.side != Side::kValue || bound.shares_layout()) return;
    const auto dim = static_cast<size_t>(bound.dim);
    const auto page = bound.encode(gaussian_rows(bound.dim, kTestSeed));
    const Rows decoded = bound.decode(page);
    const Rows p = probabilities(kTestSeed + 2);
    const Rows sums = sums_of(bound, page, p);
    for (size_t q = 0; q < kQueries; ++q) {
      const double tolerance = sum_tolerance(bound, p, q, decoded);
      for (size_t i = 0; i < dim; ++i) {
        double exact = 0;
        for (size_t t = 0; t < kT; ++t) {
          exact += static_cast<double>(p[q * kT + t]) * decoded[t * dim + i];
        }
        ASSERT_NEAR(sums[q * dim + i], exact, tolerance) << "query " << q << ", channel " << i;
      }
    }
  });
}

TEST(EveryCodec, AnswersAQueryAsIfItWereAlone) {
  for_every_codec([](const Bound& bound) {
    if (bound.shares_layout()) return;
    const auto dim = static_cast<size_t>(bound.dim);
    const bool key = bound.side == Side::kKey;
    const auto page = bound.encode(gaussian_rows(bound.dim, kTestSeed));
    const Rows rows = key ? queries_for(bound.dim, kTestSeed + 1) : probabilities(kTestSeed + 2);
    const auto width = static_cast<std::ptrdiff_t>(key ? dim : kT);
    const auto answer = [&](const Rows& asked) {
      return key ? scores_of(bound, page, asked) : sums_of(bound, page, asked);
    };
    const Rows together = answer(rows);
    const size_t out = together.size() / kQueries;
    for (int q = 0; q < kQueries; ++q) {
      const Rows alone = answer(Rows(rows.begin() + q * width, rows.begin() + (q + 1) * width));
      ASSERT_EQ(std::memcmp(alone.data(), together.data() + static_cast<size_t>(q) * out,
                            out * sizeof(float)),
                0)
          << "query " << q;
    }
  });
}

// The same pages, rows, scores and sums, to the bit, on every instruction set of this machine.
TEST(EveryCodec, IsTheSameOnEveryInstructionSet) {
  constexpr int kFewDims[] = {80, 128};
  const auto same = [](const void* a, const void* b, size_t bytes) {
    return std::memcmp(a, b, bytes) == 0;
  };
  for_every_codec(
      [&](const Bound& bound) {
        const Rows& rows = gaussian_rows(bound.dim, kTestSeed);
        const bool key = bound.side == Side::kKey;
        const auto answer = [&](const Bound& b, const AlignedArray<std::byte>& page) {
          return key ? scores_of(b, page, queries_for(b.dim, kTestSeed + 1))
                     : sums_of(b, page, probabilities(kTestSeed + 2));
        };
        const auto page = bound.encode(rows);
        const Rows decoded = bound.decode(page), answered = answer(bound, page);
        for (const Isa isa : supported_isas()) {
          const FormatInfo& info = bound.definition->info;
          const Bound other{bound.definition, bound.side, bound.dim,
                            std::move(bind_for_test(info, bound.side, bound.dim, isa)).value()};
          const auto its_page = other.encode(rows);
          ASSERT_TRUE(same(its_page.data(), page.data(), page.size())) << isa_name(isa);
          ASSERT_TRUE(same(other.decode(page).data(), decoded.data(), decoded.size() * 4))
              << isa_name(isa);
          ASSERT_TRUE(same(answer(other, page).data(), answered.data(), answered.size() * 4))
              << isa_name(isa);
        }
      },
      kFewDims);
}

TEST(EveryCodec, GivesFiniteScoresAndSumsForHugeRows) {
  for_every_codec([](const Bound& bound) {
    Rng rng(kTestSeed);
    Rows rows = gaussian_rows(bound.dim, kTestSeed);
    for (float& x : rows) x = rng.below(2) ? 3e38f : -3e38f;
    if (bound.definition->info.exact) return;  // what it holds is what was given
    const auto page = bound.encode(rows);
    const bool key = bound.side == Side::kKey;
    EXPECT_TRUE(all_finite(key ? scores_of(bound, page, queries_for(bound.dim, 1))
                               : sums_of(bound, page, probabilities(2))));
  });
}

// The codec that kernels are judged by: the format's own bytes, and sums that differ from the
// kernels' by what these round.
TEST(EveryCodec, DecodedReadsTheSamePages) {
  constexpr int kDims[] = {64, 96};
  for_every_codec(
      [](const Bound& bound) {
        if (bound.shares_layout()) return;
        const CodecArtifacts artifacts = test_artifacts(bound.definition->info, bound.dim);
        CodecBinding binding;
        binding.side = bound.side;
        binding.dim = bound.dim;
        binding.seed = 7;
        binding.artifacts = &artifacts;
        const Bound decoded{bound.definition, bound.side, bound.dim,
                            *bind_decoded_codec(bound.definition->info, binding)};
        const Rows& rows = gaussian_rows(bound.dim, kTestSeed);
        const auto page = bound.encode(rows);
        const auto same = decoded.encode(rows);
        ASSERT_EQ(std::memcmp(page.data(), same.data(), page.size()), 0);
        const Rows values = bound.decode(page);
        if (bound.side == Side::kKey) {
          const Rows queries = queries_for(bound.dim, kTestSeed + 1);
          const Rows kernel = scores_of(bound, page, queries);
          const Rows exact = scores_of(decoded, page, queries);
          for (size_t i = 0; i < kernel.size(); ++i)
            ASSERT_NEAR(kernel[i], exact[i], has_small_codes(bound) ? 0.3 : 2e-3);
          return;
        }
        const Rows p = probabilities(kTestSeed);
        const Rows kernel = sums_of(bound, page, p);
        const Rows exact = sums_of(decoded, page, p);
        for (size_t i = 0; i < kernel.size(); ++i) {
          ASSERT_NEAR(kernel[i], exact[i],
                      sum_tolerance(bound, p, i / static_cast<size_t>(bound.dim), values));
        }
      },
      kDims);
}

}  // namespace
}  // namespace kvant
