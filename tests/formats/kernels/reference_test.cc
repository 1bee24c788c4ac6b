// The scalar kernels against plain double precision: what the bits that all tables share are worth.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "formats/kernels/numerics.h"
#include "kernel_cases.h"
#include "kernel_tables.h"

namespace kvant::test {
namespace {

constexpr uint64_t kSeed = 77;

double widened(uint16_t half) { return static_cast<double>(f16_to_f32(half)); }

double factor_of(const OwnedIntPage& owned, size_t token) {
  if (owned.page.across != nullptr && owned.page.layout == ScaleLayout::kChannel)
    return widened(owned.across[token]);
  if (owned.page.factor == nullptr) return 1;
  return widened(static_cast<uint16_t>(owned.factor[token] << 7));
}

// The value that a page's code stands for.
double value_of(const IntCase& c, const OwnedIntPage& owned, size_t token, size_t channel) {
  const size_t group = channel / (static_cast<size_t>(c.dim) / static_cast<size_t>(c.num_groups));
  const size_t at = c.layout == ScaleLayout::kPage      ? 0
                    : c.layout == ScaleLayout::kChannel ? channel
                                                        : group * kTokens + token;
  const double u = owned.u[token * static_cast<size_t>(c.dim) + channel];
  const bool by_channel = c.across && c.layout == ScaleLayout::kToken;
  return (by_channel ? widened(owned.across[channel]) : factor_of(owned, token)) *
         (owned.scale_at(at) * (u - owned.page.offset) +
          (c.zero_point ? widened(owned.zero[at]) : 0.0));
}

// Rounding costs each element half a step; sums of float32 cost a few ulp of what they add.
constexpr double kFloatError = 40 * 0x1p-24;

// A step of the integers that a row of queries becomes.
double query_step(std::span<const double> row, int bits) {
  double largest = 0, squares = 0;
  for (const double x : row) {
    largest = std::max(largest, x);
    squares += x * x;
  }
  const double finest = largest / 32639;
  if (needs_two_limbs(bits)) return finest;
  const double mean = std::sqrt(squares / static_cast<double>(row.size()));
  return std::max(finest, std::min(mean / 36, largest / 127));
}

TEST(ScalarKernels, KeyScoresAreWithinTheRoundingOfTheQuery) {
  for (const IntCase& c : all_int_cases(Side::kKey, {64, 80, 128})) {
    Rng random(kSeed);
    const OwnedIntPage owned = make_int_page(c, random);
    const auto dim = static_cast<size_t>(c.dim);
    const auto queries = make_queries(7, dim, random);
    AlignedArray<std::byte> prepared(scalar_table().int_query_bytes(7, owned.page.shape()));
    scalar_table().int_prepare_query(queries.data(), 7, owned.page.shape(), prepared.data());
    std::vector<float> scores(7 * kTokens);
    scalar_table().int_key_scores(owned.page, prepared.data(), 7, scores.data(), kTokens);
    for (size_t i = 0; i < 7; ++i) {
      std::vector<double> folded(dim);  // q, or q∘scale where the scale is folded into it
      double largest = 0;
      for (size_t d = 0; d < dim; ++d) {
        const double fold = c.layout == ScaleLayout::kChannel ? owned.scale_at(d) : 1.0;
        folded[d] = std::fabs(static_cast<double>(queries[i * dim + d])) * fold;
        largest = std::max(largest, folded[d]);
      }
      for (size_t t = 0; t < kTokens; ++t) {
        double exact = 0, allowed = 0;
        for (size_t d = 0; d < dim; ++d) {
          const double q = static_cast<double>(queries[i * dim + d]);
          const double u = owned.u[t * dim + d] - owned.page.offset;
          const auto num_groups = static_cast<size_t>(c.num_groups);
          const size_t group = d / (dim / num_groups);
          const double factor = factor_of(owned, t);
          const double scale = c.layout == ScaleLayout::kChannel ? factor
                               : c.layout == ScaleLayout::kPage
                                   ? owned.scale_at(0)
                                   : owned.scale_at(group * kTokens + t);
          const double x = value_of(c, owned, t, d);
          exact += q * x;
          const size_t width = c.layout == ScaleLayout::kChannel ? dim : dim / num_groups;
          const auto row = std::span(folded).subspan(d / width * width, width);
          allowed += 0.5 * query_step(row, c.bits) * scale * std::fabs(u) +
                     kFloatError * std::fabs(q * x) + kFloatError * largest * scale * std::fabs(u);
          if (c.zero_point) allowed += kFloatError * std::fabs(q) * 4 * factor;
        }
        ASSERT_NEAR(static_cast<double>(scores[i * kTokens + t]), exact, allowed + 1e-29)
            << c << " query " << i << " token " << t << " seed " << kSeed;
      }
    }
  }
}

TEST(ScalarKernels, ValueSumsAreWithinTheRoundingOfTheProbabilities) {
  for (const IntCase& c : all_int_cases(Side::kValue, {64, 80, 128})) {
    Rng random(kSeed);
    const OwnedIntPage owned = make_int_page(c, random);
    const auto dim = static_cast<size_t>(c.dim);
    const auto p = make_probabilities(7, kTokens, random);
    std::vector<float> acc(7 * dim);
    scalar_table().int_value_accumulate(owned.page, p.data(), kTokens, 7, acc.data(), dim);
    for (size_t i = 0; i < 7; ++i) {
      for (size_t d = 0; d < dim; ++d) {
        const size_t group = d / (dim / static_cast<size_t>(c.num_groups));
        const auto scale_of = [&](size_t t) {
          return c.layout == ScaleLayout::kChannel ? owned.scale_at(d) * factor_of(owned, t)
                 : c.layout == ScaleLayout::kPage  ? owned.scale_at(0)
                                                   : owned.scale_at(group * kTokens + t);
        };
        const bool by_channel = c.across && c.layout == ScaleLayout::kToken;
        const double across = by_channel ? widened(owned.across[d]) : 1.0;
        double exact = 0, allowed = 0, largest = 0;
        for (size_t t = 0; t < kTokens; ++t) {
          largest = std::max(largest, static_cast<double>(p[i * kTokens + t]) * scale_of(t));
        }
        for (size_t t = 0; t < kTokens; ++t) {
          const double u = owned.u[t * dim + d] - owned.page.offset;
          const double weight = static_cast<double>(p[i * kTokens + t]);
          const double x = value_of(c, owned, t, d);
          exact += weight * x;
          // A byte is dithered: off by a whole step, not by half of one.
          const double error = needs_two_limbs(c.bits) ? 0.5 / 32639 : 1.0 / 255;
          allowed += largest * error * across * std::fabs(u) +
                     kFloatError * (std::fabs(weight * x) + largest * across * std::fabs(u));
          if (c.zero_point) allowed += kFloatError * weight * 4 * across * factor_of(owned, t);
        }
        ASSERT_NEAR(static_cast<double>(acc[i * dim + d]), exact, allowed + 1e-30)
            << c << " query " << i;
      }
    }
  }
}

// One token has nearly all the weight; what each of the others has is less than half a step of a
// byte. In sum they count all the same, wherever the one lies.
TEST(ScalarKernels, SmallProbabilitiesDontVanishTogether) {
  constexpr int kDim = 16;
  const uint16_t one = 0x3c00;  // binary16
  for (int bits = 1; bits <= 8; ++bits) {
    const std::vector<uint8_t> u(kTokens * kDim, static_cast<uint8_t>((1 << bits) - 1));
    AlignedArray<uint8_t> codes(value_code_bytes(bits, kDim));
    pack_value_codes(u.data(), bits, kDim, codes.data());
    const IntPage page{.codes = codes.data(),
                       .scale = &one,
                       .zero = nullptr,
                       .factor = nullptr,
                       .bits = bits,
                       .offset = 0,
                       .dim = kDim,
                       .num_groups = 1,
                       .layout = ScaleLayout::kPage};
    for (size_t heavy = 0; heavy < kTokens; ++heavy) {
      std::vector<float> p(kTokens, 0.0016f), acc(kDim);
      p[heavy] = 0.9f;
      scalar_table().int_value_accumulate(page, p.data(), kTokens, 1, acc.data(), kDim);
      const double others = 63 * 0.0016;
      for (const float sum : acc) {
        EXPECT_NEAR(static_cast<double>(sum) / u[0], 0.9 + others, 0.05 * others)
            << bits << " bits, token " << heavy;
      }
    }
  }
}

TEST(ScalarKernels, FloatPagesAreExactToFloatSums) {
  for (const FloatCase& c : all_float_cases({80})) {
    Rng random(kSeed);
    const auto dim = static_cast<size_t>(c.dim);
    const auto tokens = static_cast<size_t>(c.num_tokens);
    const OwnedFloatPage keys = make_float_page(c, Side::kKey, random);
    // The page's own elements, taken out one by one by a query that asks for one dim.
    std::vector<float> elements(dim * kTokens), queries(dim * dim, 0.0f);
    for (size_t d = 0; d < dim; ++d) queries[d * dim + d] = 1.0f;
    scalar_table().float_key_scores(keys.page, queries.data(), c.dim, elements.data(), kTokens);
    const auto q = make_queries(3, dim, random);
    std::vector<float> scores(3 * kTokens);
    scalar_table().float_key_scores(keys.page, q.data(), 3, scores.data(), kTokens);
    const auto p = make_probabilities(3, kTokens, random);
    std::vector<float> sums(3 * dim);
    scalar_table().float_value_from_key(keys.page, 0, c.dim, p.data(), kTokens, 3, sums.data(),
                                        dim);
    for (size_t i = 0; i < 3; ++i) {
      for (size_t t = 0; t < kTokens; ++t) {
        if (t >= tokens) {
          ASSERT_EQ(scores[i * kTokens + t], -std::numeric_limits<float>::infinity()) << c;
          continue;
        }
        double exact = 0, size = 0;
        for (size_t d = 0; d < dim; ++d) {
          const double term =
              static_cast<double>(q[i * dim + d]) * static_cast<double>(elements[d * kTokens + t]);
          exact += term;
          size += std::fabs(term);
        }
        ASSERT_NEAR(static_cast<double>(scores[i * kTokens + t]), exact,
                    80 * 0x1p-24 * size + 1e-38)
            << c;
      }
      for (size_t d = 0; d < dim; ++d) {
        double exact = 0, size = 0;
        for (size_t t = 0; t < tokens; ++t) {
          const double term = static_cast<double>(p[i * kTokens + t]) *
                              static_cast<double>(elements[d * kTokens + t]);
          exact += term;
          size += std::fabs(term);
        }
        ASSERT_NEAR(static_cast<double>(sums[i * dim + d]), exact, kFloatError * size + 1e-38) << c;
      }
    }
  }
}

// One scale for a token and 32 channels: the page without scales, times them.
TEST(ScalarKernels, BlockScalesMultiplyTheirChannels) {
  for (const FloatCase& c : mx_cases()) {
    Rng random(kSeed);
    const auto dim = static_cast<size_t>(c.dim), tokens = static_cast<size_t>(c.num_tokens);
    const OwnedFloatPage keys = make_float_page(c, Side::kKey, random);
    const OwnedFloatPage values = make_float_page(c, Side::kValue, random);
    const auto scale_of = [](const OwnedFloatPage& owned, size_t channel, size_t t) {
      return std::ldexp(1.0, owned.block_scale[channel / kMxBlock * kTokens + t] - 127);
    };
    FloatPage plain_keys = keys.page, plain_values = values.page;
    plain_keys.block_scale = plain_values.block_scale = nullptr;
    std::vector<float> elements(dim * kTokens), units(dim * dim, 0.0f);
    for (size_t d = 0; d < dim; ++d) units[d * dim + d] = 1.0f;
    scalar_table().float_key_scores(plain_keys, units.data(), c.dim, elements.data(), kTokens);
    const auto q = make_queries(1, dim, random);
    std::vector<float> scores(kTokens);
    scalar_table().float_key_scores(keys.page, q.data(), 1, scores.data(), kTokens);
    for (size_t t = 0; t < tokens; ++t) {
      double exact = 0, size = 0;
      for (size_t d = 0; d < dim; ++d) {
        const double term = double{q[d]} * double{elements[d * kTokens + t]} * scale_of(keys, d, t);
        exact += term;
        size += std::fabs(term);
      }
      ASSERT_NEAR(double{scores[t]}, exact, 80 * 0x1p-24 * size + 1e-38) << c;
    }
    const auto p = make_probabilities(1, kTokens, random);
    std::vector<double> exact(dim, 0.0), size(dim, 0.0);
    for (size_t t = 0; t < tokens; ++t) {
      std::vector<float> one(kTokens, 0.0f), row(dim, 0.0f);
      one[t] = 1.0f;
      scalar_table().float_value_accumulate(plain_values, one.data(), kTokens, 1, row.data(), dim);
      for (size_t d = 0; d < dim; ++d) {
        const double term = double{p[t]} * double{row[d]} * scale_of(values, d, t);
        exact[d] += term;
        size[d] += std::fabs(term);
      }
    }
    std::vector<float> sums(dim, 0.0f);
    scalar_table().float_value_accumulate(values.page, p.data(), kTokens, 1, sums.data(), dim);
    for (size_t d = 0; d < dim; ++d)
      ASSERT_NEAR(double{sums[d]}, exact[d], kFloatError * size[d] + 1e-38) << c;
  }
}

// design rule: a page where one token has p = 0.9 and 63 have 0.0016. An 8-bit p would lose the 63
// (0.0016 is 0.23 of its step); here their sum keeps three digits.
TEST(ScalarKernels, OnePeakDoesNotDrownSixtyThreeSmallProbabilities) {
  const IntCase c = {Side::kValue, 8, 64, 1, ScaleLayout::kToken, false};
  Rng random(kSeed);
  OwnedIntPage owned = make_int_page(c, random);
  for (uint16_t& s : owned.scale) s = f32_to_f16(0.01f);
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t d = 0; d < 64; ++d)
      owned.u[t * 64 + d] = static_cast<uint8_t>(t == 20 ? 128 : 129 + (t + d) % 127);
  }
  pack_value_codes(owned.u.data(), 8, 64, owned.codes.data());
  std::vector<float> p(kTokens, 0.0016f);
  p[20] = 0.9f;
  std::vector<float> acc(64);
  scalar_table().int_value_accumulate(owned.page, p.data(), kTokens, 1, acc.data(), 64);
  for (size_t d = 0; d < 64; ++d) {
    double exact = 0;
    for (size_t t = 0; t < kTokens; ++t) {
      exact += static_cast<double>(p[t]) * widened(owned.scale[t]) * (owned.u[t * 64 + d] - 128.0);
    }
    // 0.0016 is 58.02 steps of 0.9/32639 and is stored as 58.
    EXPECT_NEAR(static_cast<double>(acc[d]), exact, 1e-3 * exact) << "channel " << d;
  }
}

TEST(ScalarKernels, ProbabilitiesOfZeroAddNothing) {
  for (bool zero : {false, true}) {
    const IntCase c = {Side::kValue, 4, 64, 2, ScaleLayout::kToken, zero};
    Rng random(kSeed);
    const OwnedIntPage owned = make_int_page(c, random);
    const std::vector<float> p(kTokens, 0.0f);
    std::vector<float> acc(64, 3.25f);
    scalar_table().int_value_accumulate(owned.page, p.data(), kTokens, 1, acc.data(), 64);
    EXPECT_EQ(acc, std::vector<float>(64, 3.25f));
  }
}

TEST(ScalarKernels, ExpIsWithinTwoUlp) {
  double worst = 0;
  for (float x = 0.0f; x >= kExpLowest; x = x - std::max(1e-6f, std::fabs(x) * 2e-6f)) {
    std::vector<float> row(kTokens, x);
    const float top = 0;
    float sum;
    scalar_table().exp_and_sum(row.data(), 1, &top, &sum);
    const double exact = std::exp(static_cast<double>(x));
    const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
    worst = std::max(worst, std::fabs(static_cast<double>(row[0]) - exact) / ulp);
    ASSERT_LE(worst, 2.0) << "x = " << x;
    if (x < -1e-3f) x -= 1e-4f * static_cast<float>(1 + static_cast<int>(-x) % 7);
  }
  EXPECT_GT(worst, 0.5) << "a result that is too good is a bug of the test";
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST(ScalarKernels, ExpOfTheMaximumIsOneAndOfMinusInfinityZero) {
  std::vector<float> row(kTokens, -std::numeric_limits<float>::infinity());
  row[3] = 5.5f;
  row[4] = -90.0f;
  const float top = 5.5f;
  float sum;
  scalar_table().exp_and_sum(row.data(), 1, &top, &sum);
  EXPECT_EQ(sum, 1.0f);
  EXPECT_EQ(row[3], 1.0f);
  EXPECT_EQ(row[4], 0.0f);
  EXPECT_EQ(row[0], 0.0f);
}

TEST(ScalarKernels, HadamardIsOrthonormalAndItsOwnInverse) {
  for (int n : {1, 2, 8, 16, 64, 256}) {
    const auto size = static_cast<size_t>(n);
    std::vector<float> rows(size * size, 0.0f);
    for (size_t i = 0; i < size; ++i) rows[i * size + i] = 1.0f;
    scalar_table().hadamard(rows.data(), n, size, n);
    for (size_t i = 0; i < size; ++i) {
      for (size_t j = 0; j < size; ++j) {
        const double sign =
            __builtin_popcountll(i & j) % 2 == 0 ? 1.0 : -1.0;  // Sylvester's matrix
        ASSERT_NEAR(static_cast<double>(rows[i * size + j]),
                    sign / std::sqrt(static_cast<double>(n)), 1e-7);
      }
    }
    scalar_table().hadamard(rows.data(), n, size, n);
    for (size_t i = 0; i < size; ++i) {
      for (size_t j = 0; j < size; ++j) {
        ASSERT_NEAR(static_cast<double>(rows[i * size + j]), i == j ? 1.0 : 0.0, 1e-6);
      }
    }
  }
}

TEST(CodeLayout, UnpackGivesBackWhatWasPacked) {
  Rng random(kSeed);
  for (int bits = 2; bits <= 8; ++bits) {
    for (int dim : {16, 64, 80, 96, 128, 256}) {
      std::vector<uint8_t> u(kTokens * static_cast<size_t>(dim)), back(u.size());
      for (uint8_t& code : u) code = static_cast<uint8_t>(random.next() >> (64 - bits));
      AlignedArray<uint8_t> codes(key_code_bytes(bits, dim));
      pack_key_codes(u.data(), bits, dim, codes.data());
      unpack_key_codes(codes.data(), bits, dim, back.data());
      EXPECT_EQ(u, back) << "K int" << bits << " d" << dim;
      codes = AlignedArray<uint8_t>(value_code_bytes(bits, dim));
      pack_value_codes(u.data(), bits, dim, codes.data());
      unpack_value_codes(codes.data(), bits, dim, back.data());
      EXPECT_EQ(u, back) << "V int" << bits << " d" << dim;
    }
  }
}

// The formulas of formats/page_kernels.h, spelled out for one code of each side.
TEST(CodeLayout, CodesLieWhereTheHeaderSays) {
  constexpr int kDim = 80;  // 20 dim groups: 10 vectors of nibbles
  std::vector<uint8_t> u(kTokens * kDim);
  u[37 * kDim + 54] =
      0x1b;  // token 37, dim or channel 54; 5 bits = 0xb in the plane of 4, 1 in the plane of 1
  AlignedArray<uint8_t> codes(key_code_bytes(5, kDim));
  ASSERT_EQ(codes.size(), 64u * 4 * (10 + 3));
  pack_key_codes(u.data(), 5, kDim, codes.data());
  // token group 2, dim group 13 = vector 3, upper nibble; byte 4·5 + 2. Ones: 3 vectors, 13 =
  // vector 1, bit 4.
  EXPECT_EQ(codes[64 * (2 * 10 + 3) + 22], 0xb0);
  EXPECT_EQ(codes[64 * (4 * 10 + 2 * 3 + 1) + 22], 0x10);
  AlignedArray<uint8_t> values(value_code_bytes(5, kDim));
  ASSERT_EQ(values.size(), 64u * 5 * (8 + 2));
  pack_value_codes(u.data(), 5, kDim, values.data());
  // channel group 3, token quad 9 = vector 1, upper nibble; byte 4·6 + 1. Ones: 2 vectors, 9 =
  // vector 1, bit 4.
  EXPECT_EQ(values[64 * (3 * 8 + 1) + 25], 0xb0);
  EXPECT_EQ(values[64 * (5 * 8 + 3 * 2 + 1) + 25], 0x10);
}

TEST(CodeLayout, WidthsThatCouldOverflowAreRefused) {
  EXPECT_TRUE(int_dim_fits(8, 0, 256));
  EXPECT_FALSE(int_dim_fits(8, 0, 272));
  EXPECT_TRUE(int_dim_fits(8, 128, 512));
  EXPECT_FALSE(int_dim_fits(8, 128, 528));
  EXPECT_TRUE(int_dim_fits(4, 0, kMaxIntDim));
  EXPECT_FALSE(int_dim_fits(4, 0, kMaxIntDim + 16));
  EXPECT_FALSE(int_dim_fits(4, 0, 100));
  EXPECT_FALSE(int_dim_fits(4, 0, 0));
}

}  // namespace
}  // namespace kvant::test
