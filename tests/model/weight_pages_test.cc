// Weights in pages: the numbers of the file, multiplied as every instruction set does it.
#include "model/weight_pages.h"

#include <ggml.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "model/ggml_cpu.h"
#include "model/matrix.h"

namespace kvant {
namespace {

constexpr uint32_t kTypes[] = {GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1,
                               GGML_TYPE_Q8_0};
// Of models: one tile and several, the last of them narrower, up to what no page holds.
constexpr int64_t kWidths[] = {32, 96, 576, 640, 1024, 1056, 1536, 2048, 2080};

Matrix random_matrix(uint32_t type, int64_t rows, int64_t cols, uint64_t seed) {
  Matrix w = {type, rows, cols, type_row_bytes(type, cols), nullptr, nullptr};
  auto bytes = std::make_shared<AlignedArray<std::byte>>(w.bytes());
  Rng rng(seed);
  std::vector<float> row(static_cast<size_t>(cols));
  for (int64_t r = 0; r < rows; ++r) {
    for (float& x : row) x = 0.1f * rng.normal() + 0.02f;
    from_floats(type, row.data(), bytes->data() + static_cast<size_t>(r) * w.row_bytes, cols);
  }
  w.data = bytes->data();
  w.owned = std::move(bytes);
  return w;
}

std::vector<float> floats_of(const Matrix& w) {
  std::vector<float> out(static_cast<size_t>(w.rows * w.cols));
  for (int64_t r = 0; r < w.rows; ++r) to_floats(w.type, w.row(r), out.data() + r * w.cols, w.cols);
  return out;
}

class WeightPagesTest : public testing::TestWithParam<std::tuple<uint32_t, int64_t>> {
 protected:
  static constexpr int64_t kRows = 150;  // two pages and a rest
  void SetUp() override {
    ASSERT_TRUE(load_ggml_cpu().ok());
    const auto [type, cols] = GetParam();
    ASSERT_TRUE(WeightPages::can_hold(type, cols));
    matrix_ = random_matrix(type, kRows, cols, 7);
    pages_ = WeightPages::make(matrix_, memory_, threads_);
  }

  ThreadPool threads_{2};
  WeightPages::Memory memory_;
  Matrix matrix_;
  std::shared_ptr<const WeightPages> pages_;
};

TEST_P(WeightPagesTest, HoldTheNumbersOfTheFile) {
  const std::vector<float> want = floats_of(matrix_);
  const auto cols = static_cast<size_t>(matrix_.cols);
  std::vector<float> got(64 * cols);
  for (int64_t page = 0; page < pages_->num_pages(); ++page) {
    const int64_t count = std::min<int64_t>(64, kRows - 64 * page);
    pages_->to_floats(page, count, got.data());
    for (size_t i = 0; i < static_cast<size_t>(count) * cols; ++i) {
      // A product and a sum, or both at once: the last bit is the compiler's.
      const float wanted = want[static_cast<size_t>(64 * page) * cols + i];
      ASSERT_NEAR(got[i], wanted, 1e-6 * std::fabs(wanted) + 1e-7)
          << "page " << page << " at " << i;
    }
  }
}

TEST_P(WeightPagesTest, TakeTheBytesOfTheFile) {
  const size_t in_file = 64 * matrix_.row_bytes;
  EXPECT_GE(pages_->page_bytes(), in_file);
  // Planes of single bits are filled up to eight quads, tile by tile.
  EXPECT_LE(pages_->page_bytes(), in_file + in_file / 8 + 512);
}

// What a product is off by, squared and summed up, of ggml's 8-bit blocks and of pages; and what
// the product of the ordinary activations is.
struct Errors {
  double rows = 0, pages = 0, size = 0;
};

// Activations with one that is large, as those of gated layers have.
TEST_P(WeightPagesTest, ProductsAreCloserThanThoseOfGgmlsBlocks) {
  constexpr size_t kNumRows = 5;
  constexpr float kLarge = 60;
  const auto cols = static_cast<size_t>(matrix_.cols);
  const DotKernel kernel = dot_kernel(matrix_.type).value();
  AlignedArray<std::byte> prepared(kNumRows * pages_->prepared_bytes());
  std::vector<std::byte> blocks(type_row_bytes(kernel.activation_type, matrix_.cols));
  Rng rng(11);
  std::vector<float> x(kNumRows * cols);
  for (float& v : x) v = rng.normal();
  for (size_t i = 0; i < kNumRows; ++i) {
    x[i * cols + 7 * i] = kLarge;
    pages_->prepare(x.data() + i * cols, i, kNumRows, prepared.data());
  }
  const std::vector<float> weights = floats_of(matrix_);
  std::vector<float> out(kNumRows * 64);
  Errors errors;
  for (int64_t row = 0; row < kRows; ++row) {
    if (row % 64 == 0) pages_->multiply(row / 64, prepared.data(), kNumRows, out.data(), 64);
    const float* w = weights.data() + static_cast<size_t>(row) * cols;
    for (size_t i = 0; i < kNumRows; ++i) {
      const float* activations = x.data() + i * cols;
      double want = 0;
      for (size_t c = 0; c < cols; ++c) {
        want += static_cast<double>(w[c]) * activations[c];
        if (activations[c] != kLarge) errors.size += static_cast<double>(w[c]) * w[c];
      }
      kernel.quantize(activations, blocks.data(), matrix_.cols);
      float other = 0;
      kernel.dot(static_cast<int>(cols), &other, 0, matrix_.row(row), 0, blocks.data(), 0, 1);
      errors.rows += std::pow(other - want, 2);
      errors.pages += std::pow(out[i * 64 + static_cast<size_t>(row % 64)] - want, 2);
    }
  }
  const double relative = std::sqrt(errors.pages / errors.size);
  EXPECT_LT(errors.pages, 0.8 * errors.rows);
  EXPECT_GT(relative, 1e-6) << "too good to be quantized";
  // 16 bits where codes have more than four.
  const bool is_fine = matrix_.type != GGML_TYPE_Q4_0 && matrix_.type != GGML_TYPE_Q4_1;
  EXPECT_LT(relative, is_fine ? 2e-3 : 0.2);
}

INSTANTIATE_TEST_SUITE_P(Types, WeightPagesTest,
                         testing::Combine(testing::ValuesIn(kTypes), testing::ValuesIn(kWidths)),
                         [](const auto& info) {
                           return type_name(std::get<0>(info.param)) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(WeightPages, AreOfBlocksOf32) {
  EXPECT_FALSE(WeightPages::can_hold(GGML_TYPE_Q8_0, 48));
  EXPECT_FALSE(WeightPages::can_hold(GGML_TYPE_Q8_0, 0));
  for (const uint32_t type : {GGML_TYPE_F32, GGML_TYPE_BF16, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K})
    EXPECT_FALSE(WeightPages::can_hold(type, 256)) << type_name(type);
}

}  // namespace
}  // namespace kvant
