// Every kernel of every instruction set gives the scalar kernel's bits, whatever the number of
// queries in a call.
#include <gtest/gtest.h>

#include <cstring>

#include "kernel_cases.h"
#include "kernel_tables.h"
#include "slow_build.h"

namespace kvant::test {
namespace {

constexpr uint64_t kSeed = 20260730;
constexpr std::initializer_list<int> kDims = {64, 80, 96, 128, 160, 192, 256};
constexpr int kMostQueries = 64;
constexpr int kQueryCounts[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 64};
constexpr float kUntouched = 1234.5f;

// Slow builds and emulated instructions: fewer sizes, every code path still.
bool is_slow(const PageKernels& table) {
  return kSlowBuild || std::string(table.name).ends_with("_simde");
}
bool skip_queries(const PageKernels& table, int n) {
  return is_slow(table) && n != 1 && n != 7 && n != 8;
}
bool skip_dim(const PageKernels& table, int dim) {
  return is_slow(table) && dim != 80 && dim != 128;
}

// Rows of `width` floats, `stride` apart, with untouched floats between them.
::testing::AssertionResult same_rows(const std::vector<float>& got, const std::vector<float>& want,
                                     size_t rows, size_t width, size_t stride) {
  for (size_t i = 0; i < got.size(); ++i) {
    const bool inside = i / stride < rows && i % stride < width;
    const float expected = inside ? want[i] : kUntouched;
    if (std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(expected)) {
      return ::testing::AssertionFailure()
             << "row " << i / stride << " column " << i % stride << ": " << got[i]
             << ", the scalar kernel gives " << expected;
    }
  }
  return ::testing::AssertionSuccess();
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class SameBits : public ::testing::TestWithParam<const PageKernels*> {
 protected:
  const PageKernels& table() const { return *GetParam(); }
};

std::vector<float> key_scores(const PageKernels& table, const IntPage& page,
                              const std::vector<float>& queries, int n, size_t stride) {
  AlignedArray<std::byte> prepared(table.int_query_bytes(n, page.shape()));
  table.int_prepare_query(queries.data(), n, page.shape(), prepared.data());
  std::vector<float> scores(kMostQueries * stride, kUntouched);
  table.int_key_scores(page, prepared.data(), n, scores.data(), stride);
  return scores;
}

TEST_P(SameBits, IntKeyScores) {
  constexpr size_t kStride = 70;
  for (const IntCase& c : all_int_cases(Side::kKey, kDims)) {
    if (skip_dim(table(), c.dim)) continue;
    Rng random(kSeed);
    const OwnedIntPage owned = make_int_page(c, random);
    const auto queries = make_queries(kMostQueries, static_cast<size_t>(c.dim), random);
    const auto want = key_scores(scalar_table(), owned.page, queries, kMostQueries, kStride);
    for (int n : kQueryCounts) {
      if (skip_queries(table(), n)) continue;
      const auto got = key_scores(table(), owned.page, queries, n, kStride);
      ASSERT_TRUE(same_rows(got, want, static_cast<size_t>(n), kTokens, kStride))
          << c << ", " << n << " queries, seed " << kSeed;
    }
  }
}

std::vector<float> starting_sums(size_t rows, size_t width, size_t stride) {
  std::vector<float> acc(kMostQueries * stride, kUntouched);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t c = 0; c < width; ++c)
      acc[i * stride + c] = 0.1f * static_cast<float>(i) - static_cast<float>(c);
  }
  return acc;
}

TEST_P(SameBits, IntValueAccumulate) {
  constexpr size_t kStrideP = 66;
  for (const IntCase& c : all_int_cases(Side::kValue, kDims)) {
    if (skip_dim(table(), c.dim)) continue;
    Rng random(kSeed);
    const OwnedIntPage owned = make_int_page(c, random);
    const auto p = make_probabilities(kMostQueries, kStrideP, random);
    const auto width = static_cast<size_t>(c.dim);
    const size_t stride = width + 3;
    auto want = starting_sums(kMostQueries, width, stride);
    scalar_table().int_value_accumulate(owned.page, p.data(), kStrideP, kMostQueries, want.data(),
                                        stride);
    for (int n : kQueryCounts) {
      if (skip_queries(table(), n)) continue;
      auto got = starting_sums(static_cast<size_t>(n), width, stride);
      table().int_value_accumulate(owned.page, p.data(), kStrideP, n, got.data(), stride);
      ASSERT_TRUE(same_rows(got, want, static_cast<size_t>(n), width, stride))
          << c << ", " << n << " queries, seed " << kSeed;
    }
  }
}

// What is said to come next is only asked for, wherever it lies.
TEST_P(SameBits, NextIsAHint) {
  for (const int bits : {3, 8}) {
    Rng random(kSeed);
    const IntCase c = {Side::kKey, bits, 128, 1, ScaleLayout::kChannel, true};
    const OwnedIntPage owned = make_int_page(c, random);
    const auto queries = make_queries(kMostQueries, 128, random);
    const auto want = key_scores(table(), owned.page, queries, 5, kTokens);
    IntPage page = owned.page;
    for (const uintptr_t next : {uintptr_t{1} << 46, uintptr_t{64}}) {
      page.next = reinterpret_cast<const uint8_t*>(next);
      EXPECT_TRUE(same_bits(key_scores(table(), page, queries, 5, kTokens), want)) << bits;
    }
  }
}

TEST_P(SameBits, IntKernelsOfLargeHeads) {
  for (const IntCase& c : {IntCase{Side::kKey, 8, 512, 1, ScaleLayout::kChannel, false},
                           IntCase{Side::kKey, 4, 1024, 32, ScaleLayout::kToken, true},
                           IntCase{Side::kKey, 3, 576, 1, ScaleLayout::kToken, true}}) {
    Rng random(kSeed);
    const OwnedIntPage owned = make_int_page(c, random);
    const auto queries = make_queries(kMostQueries, static_cast<size_t>(c.dim), random);
    const auto want = key_scores(scalar_table(), owned.page, queries, 5, kTokens);
    EXPECT_TRUE(
        same_rows(key_scores(table(), owned.page, queries, 5, kTokens), want, 5, kTokens, kTokens))
        << c;
  }
}

// The largest sums that int_dim_fits() allows: all codes at the top, all query integers at ±32639.
TEST_P(SameBits, IntKeyScoresAtTheBound) {
  for (bool zero : {false, true}) {
    const IntCase c = {Side::kKey, 8, zero ? 256 : 512, 1, ScaleLayout::kToken, zero};
    ASSERT_TRUE(int_dim_fits(8, zero ? 0 : 128, c.dim));
    Rng random(kSeed);
    OwnedIntPage owned = make_int_page(c, random);
    std::fill(owned.u.begin(), owned.u.end(), static_cast<uint8_t>(zero ? 255 : 0));
    pack_key_codes(owned.u.data(), 8, c.dim, owned.codes.data());
    for (float sign : {-1.0f, 1.0f}) {
      const std::vector<float> queries(static_cast<size_t>(c.dim), sign);
      const auto want = key_scores(scalar_table(), owned.page, queries, 1, kTokens);
      const double level = zero ? 255 : -128;
      const double exact =
          static_cast<double>(sign) * level * c.dim *
              static_cast<double>(f16_to_f32(owned.scale[0])) +
          (zero ? static_cast<double>(sign) * c.dim * static_cast<double>(f16_to_f32(owned.zero[0]))
                : 0.0);
      EXPECT_NEAR(want[0], exact, 1e-5 * std::fabs(exact));
      EXPECT_TRUE(same_rows(key_scores(table(), owned.page, queries, 1, kTokens), want, 1, kTokens,
                            kTokens))
          << c;
    }
  }
}

std::vector<FloatCase> with_mx_cases(std::vector<FloatCase> cases) {
  const std::vector<FloatCase> more = mx_cases();
  cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}

TEST_P(SameBits, FloatKeyScores) {
  constexpr size_t kStride = 64;
  for (const FloatCase& c : with_mx_cases(all_float_cases({64, 80, 128, 576}))) {
    if (is_slow(table()) && c.dim != 80 && !c.blocks) continue;
    Rng random(kSeed);
    const OwnedFloatPage owned = make_float_page(c, Side::kKey, random);
    const auto queries = make_queries(9, static_cast<size_t>(c.dim), random);
    std::vector<float> want(kMostQueries * kStride, kUntouched);
    scalar_table().float_key_scores(owned.page, queries.data(), 9, want.data(), kStride);
    for (int n : {1, 2, 3, 4, 9}) {
      std::vector<float> got(kMostQueries * kStride, kUntouched);
      table().float_key_scores(owned.page, queries.data(), n, got.data(), kStride);
      ASSERT_TRUE(same_rows(got, want, static_cast<size_t>(n), kTokens, kStride))
          << c << ", " << n << " queries";
    }
  }
}

TEST_P(SameBits, FloatValueAccumulate) {
  for (const FloatCase& c : with_mx_cases(all_float_cases({64, 80, 128, 256}))) {
    if (is_slow(table()) && c.dim != 80 && !c.blocks) continue;
    Rng random(kSeed);
    const OwnedFloatPage owned = make_float_page(c, Side::kValue, random);
    const auto p = make_probabilities(9, kTokens, random);
    const auto width = static_cast<size_t>(c.dim);
    const size_t stride = width + 16;
    auto want = starting_sums(9, width, stride);
    scalar_table().float_value_accumulate(owned.page, p.data(), kTokens, 9, want.data(), stride);
    for (int n : {1, 2, 3, 4, 9}) {
      auto got = starting_sums(static_cast<size_t>(n), width, stride);
      table().float_value_accumulate(owned.page, p.data(), kTokens, n, got.data(), stride);
      ASSERT_TRUE(same_rows(got, want, static_cast<size_t>(n), width, stride))
          << c << ", " << n << " queries";
    }
  }
}

TEST_P(SameBits, FloatValueFromKey) {
  constexpr int kFirst = 5;
  constexpr size_t kCount = 59;
  for (const FloatCase& c : all_float_cases({64, 576})) {
    if (is_slow(table()) && c.dim != 64) continue;
    Rng random(kSeed);
    const OwnedFloatPage owned = make_float_page(c, Side::kKey, random);
    const auto p = make_probabilities(9, kTokens, random);
    auto want = starting_sums(9, kCount, kCount);
    scalar_table().float_value_from_key(owned.page, kFirst, kCount, p.data(), kTokens, 9,
                                        want.data(), kCount);
    for (int n : {1, 2, 3, 4, 9}) {
      auto got = starting_sums(static_cast<size_t>(n), kCount, kCount);
      table().float_value_from_key(owned.page, kFirst, kCount, p.data(), kTokens, n, got.data(),
                                   kCount);
      ASSERT_TRUE(same_rows(got, want, static_cast<size_t>(n), kCount, kCount))
          << c << ", " << n << " queries";
    }
  }
}

TEST_P(SameBits, EveryNarrowFloat) {
  for (FloatType type : {FloatType::kF16, FloatType::kBf16, FloatType::kE4m3, FloatType::kE5m2}) {
    const uint32_t codes = type == FloatType::kF16 || type == FloatType::kBf16 ? 65536 : 256;
    const size_t bytes = float_bytes(type);
    AlignedArray<std::byte> data(16 * kTokens * bytes);
    const FloatPage page = {.data = data.data(),
                            .type = type,
                            .dim = 16,
                            .num_tokens = 1,
                            .scale = nullptr,
                            .layout = ScaleLayout::kPage};
    std::vector<float> p(kTokens, 0.0f);
    p[0] = 1.0f;
    for (uint32_t first = 0; first < codes; first += 16) {
      for (uint32_t c = 0; c < 16; ++c) {
        const uint32_t code = first + c;
        std::memcpy(data.data() + c * bytes, &code, bytes);
      }
      std::vector<float> want(16), got(16);
      scalar_table().float_value_accumulate(page, p.data(), kTokens, 1, want.data(), 16);
      table().float_value_accumulate(page, p.data(), kTokens, 1, got.data(), 16);
      for (size_t c = 0; c < 16; ++c) {
        const bool same = std::isnan(want[c])
                              ? std::isnan(got[c])
                              : std::bit_cast<uint32_t>(got[c]) == std::bit_cast<uint32_t>(want[c]);
        ASSERT_TRUE(same) << "code " << first + c << ": " << got[c] << ", not " << want[c];
      }
    }
  }
}

// Rows in blocks of every size that the kernels take together.
constexpr int kMostRows = 9;

TEST_P(SameBits, ExpAndSum) {
  Rng random(kSeed);
  for (int run = 0; run < 400; ++run) {
    const int rows = 1 + run % kMostRows;
    std::vector<float> want(static_cast<size_t>(rows) * kTokens), top(static_cast<size_t>(rows));
    for (float& m : top) m = random.normal();
    for (size_t i = 0; i < want.size(); ++i)
      want[i] = top[i / kTokens] - 90.0f * uniform(random) * uniform(random);
    want[7] = -std::numeric_limits<float>::infinity();
    auto got = want;
    std::vector<float> want_sum(top.size()), got_sum(top.size());
    scalar_table().exp_and_sum(want.data(), rows, top.data(), want_sum.data());
    table().exp_and_sum(got.data(), rows, top.data(), got_sum.data());
    ASSERT_TRUE(same_bits(got_sum, want_sum)) << rows << " rows";
    ASSERT_TRUE(same_bits(got, want)) << rows << " rows";
  }
}

TEST_P(SameBits, MaskedAndBrokenRows) {
  const float inf = std::numeric_limits<float>::infinity();
  for (int rows = 1; rows <= kMostRows; ++rows) {
    std::vector<float> masked(static_cast<size_t>(rows) * kTokens, -inf);
    std::vector<float> top(static_cast<size_t>(rows)), sum(top.size());
    table().row_max(masked.data(), rows, top.data());
    EXPECT_EQ(top, std::vector<float>(top.size(), -inf));
    table().exp_and_sum(masked.data(), rows, top.data(), sum.data());
    EXPECT_EQ(sum, std::vector<float>(sum.size(), 0.0f));
    EXPECT_EQ(masked, std::vector<float>(masked.size(), 0.0f));
    std::vector<float> broken(masked.size(), 0.0f);
    broken[5] = std::numeric_limits<float>::quiet_NaN();
    top.assign(top.size(), 0.0f);
    table().exp_and_sum(broken.data(), rows, top.data(), sum.data());
    EXPECT_TRUE(std::isnan(sum[0]));
    for (size_t i = 1; i < sum.size(); ++i) EXPECT_EQ(sum[i], 64.0f);
  }
}

TEST_P(SameBits, RowMaxAndScaleRow) {
  Rng random(kSeed);
  for (int run = 0; run < 200; ++run) {
    const int rows = 1 + run % kMostRows;
    std::vector<float> scores(static_cast<size_t>(rows) * kTokens);
    for (float& s : scores) s = random.normal();
    std::vector<float> want(static_cast<size_t>(rows)), got(want.size());
    scalar_table().row_max(scores.data(), rows, want.data());
    table().row_max(scores.data(), rows, got.data());
    EXPECT_EQ(got, want);
  }
  for (int n : {1, 15, 16, 80, 100}) {
    auto want = make_queries(1, 128, random);
    auto got = want;
    scalar_table().scale_row(want.data(), 0.37f, n);
    table().scale_row(got.data(), 0.37f, n);
    EXPECT_EQ(got, want);
  }
}

TEST_P(SameBits, Hadamard) {
  Rng random(kSeed);
  for (int n = 1; n <= 256; n *= 2) {
    constexpr size_t kStride = 260;
    auto want = make_queries(3, kStride, random);
    auto got = want;
    scalar_table().hadamard(want.data(), 3, kStride, n);
    table().hadamard(got.data(), 3, kStride, n);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
          << "n " << n << " at " << i;
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SameBits);
INSTANTIATE_TEST_SUITE_P(Kernels, SameBits, ::testing::ValuesIn(vector_tables()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace kvant::test
