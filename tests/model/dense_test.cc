#include "model/dense.h"

#include <ggml.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>

#include "base/rng.h"
#include "model/ggml_cpu.h"
#include "simd/cpu.h"

namespace kvant {
namespace {

struct DenseCase {
  uint32_t type;
  bool in_pages;
};
std::string name_of(const DenseCase& c) { return type_name(c.type) + (c.in_pages ? "_pages" : ""); }

// Every type that a tensor of the two test models has, and those that --weights makes; where pages
// hold it, in pages too.
std::vector<DenseCase> all_cases() {
  std::vector<DenseCase> out;
  for (const uint32_t type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q4_0,
                              GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q8_0,
                              GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K}) {
    out.push_back({type, false});
    if (WeightPages::can_hold(type, 32)) out.push_back({type, true});
  }
  return out;
}

std::vector<float> random_floats(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> out(n);
  for (float& x : out) x = rng.normal();
  return out;
}

Linear random_linear(uint32_t type, int64_t rows, int64_t cols, uint64_t seed) {
  Linear out;
  Matrix& w = out.weight;
  w = {type, rows, cols, type_row_bytes(type, cols), nullptr, nullptr};
  auto bytes = std::make_shared<AlignedArray<std::byte>>(w.bytes());
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<float> row =
        random_floats(static_cast<size_t>(cols), seed * 100000 + static_cast<uint64_t>(r));
    from_floats(type, row.data(), bytes->data() + static_cast<size_t>(r) * w.row_bytes, cols);
  }
  w.data = bytes->data();
  w.owned = std::move(bytes);
  out.bias = random_floats(static_cast<size_t>(rows), seed + 7);
  return out;
}

// What WeightLoader::in_pages does.
void put_in_pages(Matrix& w) {
  ThreadPool threads(2);
  WeightPages::Memory memory;
  w.pages = WeightPages::make(w, memory, threads);
  w.data = nullptr;
  w.owned.reset();
}

// The specification, in double on the decoded weights.
std::vector<double> reference(const Linear& linear, const float* x) {
  const Matrix& w = linear.weight;
  std::vector<double> out;
  std::vector<float> row(static_cast<size_t>(w.cols));
  for (int64_t r = 0; r < w.rows; ++r) {
    to_floats(w.type, w.row(r), row.data(), w.cols);
    double sum = linear.bias.empty() ? 0 : linear.bias[static_cast<size_t>(r)];
    for (size_t c = 0; c < row.size(); ++c) sum += static_cast<double>(row[c]) * x[c];
    out.push_back(sum);
  }
  return out;
}

class DenseTest : public ::testing::TestWithParam<DenseCase> {
 protected:
  static constexpr int64_t kRows = 200;  // three slices and a rest
  static constexpr int64_t kCols = 512;

  void SetUp() override {
    ASSERT_TRUE(load_ggml_cpu().ok()) << load_ggml_cpu().message();
    linear_ = random_linear(GetParam().type, kRows, kCols, 3);
    tested_ = linear_;
    if (GetParam().in_pages) put_in_pages(tested_.weight);
  }
  std::vector<float> run(const std::vector<float>& x, const RowPlan& plan, ThreadPool& threads) {
    std::vector<float> out(x.size() / kCols * kRows, NAN);
    Dense dense(threads);
    const DenseJob job{&tested_, out.data(), kRows};
    const Status status = dense.run({&job, 1}, x.data(), kCols, plan);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }
  static RowPlan singles(int n) {
    RowPlan plan;
    plan.singles.resize(static_cast<size_t>(n));
    std::iota(plan.singles.begin(), plan.singles.end(), 0);
    return plan;
  }
  static RowPlan blocks(int n) {
    RowPlan plan;
    for (int b = 0; b < n; ++b) plan.blocks.push_back(64 * b);
    return plan;
  }
  // Root-mean-square error of row r of `out` relative to the reference's size.
  double relative_error(const std::vector<float>& out, const std::vector<float>& x, size_t r) {
    const std::vector<double> want = reference(linear_, x.data() + r * kCols);
    double error = 0;
    double size = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      error += std::pow(out[r * kRows + i] - want[i], 2);
      size += want[i] * want[i];
    }
    return std::sqrt(error / size);
  }

  Linear linear_, tested_;
  ThreadPool one_{1};
  ThreadPool two_{2};
};

TEST_P(DenseTest, RowsMatchTheReferenceAsWellAsTheActivationTypeAllows) {
  const std::vector<float> x = random_floats(3 * kCols, 11);
  const std::vector<float> out = run(x, singles(3), two_);
  // 8-bit blocks of normal values: step amax/127, about 2.3 sigma/127 for 32 values, error
  // step/sqrt(12) → 0.6 %; bf16 and f16 round to 2^-9 and 2^-12.
  const double bound = GetParam().type == GGML_TYPE_F32 ? 1e-6 : 1.2e-2;
  for (size_t r = 0; r < 3; ++r) EXPECT_LT(relative_error(out, x, r), bound) << name_of(GetParam());
}

TEST_P(DenseTest, BlocksMatchTheReference) {
  const std::vector<float> x = random_floats(128 * kCols, 12);
  const std::vector<float> out = run(x, blocks(2), two_);
  const double bound = GetParam().type == GGML_TYPE_F32 || !cpu_has_bf16() ? 1e-6 : 5e-3;
  for (size_t r : {size_t{0}, size_t{63}, size_t{64}, size_t{127}}) {
    EXPECT_LT(relative_error(out, x, r), bound) << name_of(GetParam());
  }
}

TEST_P(DenseTest, ARowIsTheSameToTheBitWhateverElseIsInTheBatch) {
  const std::vector<float> x = random_floats(37 * kCols, 13);
  const std::vector<float> many = run(x, singles(37), two_);
  for (size_t r = 0; r < 37; ++r) {
    const std::vector<float> alone = run(
        {x.begin() + static_cast<long>(r) * kCols, x.begin() + static_cast<long>(r + 1) * kCols},
        singles(1), one_);
    for (size_t i = 0; i < kRows; ++i) ASSERT_EQ(alone[i], many[r * kRows + i]) << "row " << r;
  }
}

TEST_P(DenseTest, ABlockIsTheSameToTheBitWhateverElseIsInTheBatch) {
  constexpr int kBlocks = 11;  // more than one group of an item
  const std::vector<float> x = random_floats(kBlocks * 64 * kCols, 14);
  const std::vector<float> many = run(x, blocks(kBlocks), two_);
  for (size_t b = 0; b < kBlocks; ++b) {
    const auto begin = x.begin() + static_cast<long>(b * 64) * kCols;
    const std::vector<float> alone = run({begin, begin + 64 * kCols}, blocks(1), one_);
    for (size_t i = 0; i < alone.size(); ++i)
      ASSERT_EQ(alone[i], many[b * 64 * kRows + i]) << "block " << b;
  }
}

TEST_P(DenseTest, ARowDoesNotDependOnTheOtherRowsOfItsBlock) {
  std::vector<float> x = random_floats(64 * kCols, 15);
  const std::vector<float> before = run(x, blocks(1), one_);
  for (size_t i = kCols; i < x.size(); ++i) x[i] *= -3.0f;
  const std::vector<float> after = run(x, blocks(1), one_);
  for (size_t i = 0; i < kRows; ++i) ASSERT_EQ(before[i], after[i]);
}

TEST_P(DenseTest, BothPathsServeOnePlan) {
  const std::vector<float> x = random_floats(70 * kCols, 16);
  RowPlan plan;
  plan.singles = {0, 1, 66, 67, 68, 69};
  plan.blocks = {2};
  const std::vector<float> mixed = run(x, plan, two_);
  const std::vector<float> few = run(x, singles(70), one_);
  for (size_t r : {size_t{0}, size_t{69}}) {
    for (size_t i = 0; i < kRows; ++i) ASSERT_EQ(mixed[r * kRows + i], few[r * kRows + i]);
  }
  for (float y : mixed) ASSERT_FALSE(std::isnan(y));
  EXPECT_LT(relative_error(mixed, x, 2), 5e-3);
}

INSTANTIATE_TEST_SUITE_P(Types, DenseTest, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return name_of(info.param); });

TEST(DenseJobs, ShareOneInputAndWriteColumnRanges) {
  ASSERT_TRUE(load_ggml_cpu().ok());
  ThreadPool threads(2);
  const Linear a = random_linear(GGML_TYPE_Q4_1, 96, 64, 1);
  const Linear b = random_linear(GGML_TYPE_BF16, 40, 64, 2);
  Linear c = a;
  put_in_pages(c.weight);
  const std::vector<float> x = random_floats(66 * 64, 5);
  constexpr size_t kWidth = 96 + 40 + 96;
  std::vector<float> out(66 * kWidth, NAN);
  RowPlan plan;
  plan.singles = {64, 65};
  plan.blocks = {0};
  Dense dense(threads);
  const DenseJob jobs[] = {
      {&a, out.data(), kWidth}, {&b, out.data() + 96, kWidth}, {&c, out.data() + 136, kWidth}};
  ASSERT_TRUE(dense.run(jobs, x.data(), 64, plan).ok());
  for (size_t r : {size_t{0}, size_t{65}}) {
    const std::vector<double> want_a = reference(a, x.data() + r * 64);
    const std::vector<double> want_b = reference(b, x.data() + r * 64);
    for (size_t i = 0; i < 96; ++i) EXPECT_NEAR(out[r * kWidth + i], want_a[i], 0.4);
    for (size_t i = 0; i < 40; ++i) EXPECT_NEAR(out[r * kWidth + 96 + i], want_b[i], 0.4);
    for (size_t i = 0; i < 96; ++i) EXPECT_NEAR(out[r * kWidth + 136 + i], want_a[i], 0.4);
  }
}

}  // namespace
}  // namespace kvant
