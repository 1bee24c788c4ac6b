// WeightPages: a quantized weight matrix in the layout of a cache's keys, so that few rows of
// activations are multiplied as fast as queries are.
//
// 64 outputs by up to 1024 inputs are a page of integer codes with a scale (and a zero point) per
// output and 32 inputs (formats/page_kernels.h, ScaleLayout::kToken): exactly what ggml's blocks of
// 32 hold, so the numbers are those of the file and take as many bytes. Activations are quantized
// as queries are, one float scale per 32 of them: to 16 bits beside codes of more than 4 bits,
// beside others to 7 bits and more where they are uneven (docs/numerics.md).
//
// Immutable; everything may be called from any thread. A row's result depends on nothing but the
// row and the weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/threads.h"
#include "formats/page_kernels.h"

namespace kvant {

struct Matrix;

class WeightPages {
 public:
  static constexpr int64_t kPageRows = 64;

  // Whether matrices of this type and width can be pages: Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0.
  static bool can_hold(uint32_t type, int64_t cols);
  // Memory for the pages of many matrices, in pieces large enough for huge pages: a matrix of its
  // own is often smaller than one. What was taken keeps its piece alive.
  class Memory {
   public:
    std::shared_ptr<std::byte[]> take(size_t bytes);

   private:
    std::shared_ptr<AlignedArray<std::byte>> piece_;
    size_t used_ = 0;
  };
  // REQUIRES can_hold of the matrix's type and width, and rows that are in memory.
  static std::shared_ptr<const WeightPages> make(const Matrix& matrix, Memory& memory,
                                                 ThreadPool& threads);

  int64_t num_pages() const { return (rows_ + kPageRows - 1) / kPageRows; }
  size_t page_bytes() const { return page_bytes_; }

  // What prepared activations depend on: pages that are alike share them.
  struct Shape {
    int bits = 0;
    int64_t cols = 0;
    bool operator==(const Shape&) const = default;
  };
  Shape shape() const { return {bits_, cols_}; }

  // Activations x as row `row` of `num_rows` prepared ones, num_rows·prepared_bytes() in all.
  size_t prepared_bytes() const { return record_bytes_; }
  void prepare(const float* x, size_t row, size_t num_rows, std::byte* prepared) const;

  // out[i][r] = weight row 64·page + r times prepared row i of num_rows <= kMostRows, for 64 r,
  // also where the matrix ends earlier; rows of out are `stride` floats apart.
  static constexpr size_t kMostRows = 16;
  void multiply(int64_t page, const std::byte* prepared, int num_rows, float* out,
                size_t stride) const;

  // The weights of `count` <= 64 rows from the page's first on, [count][cols].
  void to_floats(int64_t page, int64_t count, float* out) const;

 private:
  // Inputs [first, first + dim) of every page.
  struct Tile {
    int first, dim;
    size_t code_bytes;
    size_t page_at;      // in a page
    size_t prepared_at;  // where the tile's part begins if a single row is prepared
  };

  WeightPages(uint32_t type, int64_t rows, int64_t cols, Memory& memory);
  void fill_page(const Matrix& matrix, int64_t page);
  size_t scale_bytes(const Tile& tile) const;  // and zero points
  IntShape shape_of(const Tile& tile) const;
  IntPage page_of(const Tile& tile, const std::byte* page) const;
  const std::byte* at(int64_t page) const {
    return memory_.get() + static_cast<size_t>(page) * page_bytes_;
  }

  int64_t rows_, cols_;
  int bits_;
  bool has_zero_;
  size_t page_bytes_ = 0, record_bytes_ = 0;
  std::vector<Tile> tiles_;
  std::shared_ptr<std::byte[]> memory_;
  const PageKernels& kernels_;
};

}  // namespace kvant
