// Dense layers on rows of activations, by two paths that never mix: few rows by integer products on
// pages of weights or, of types that pages don't hold, by ggml's dot products on the weights as
// they lie; whole blocks of 64 rows by oneDNN on weights that are dequantized slice by slice. In
// neither does a row's result depend on the other rows of the call, on the number of threads, or on
// how many blocks there are.
//
// Weights of type F32 are multiplied in float32 by both paths. Others: the row path rounds
// activations as the pages (weight_pages.h) or ggml's type (8-bit blocks, or bf16) want, the block
// path to bf16 on a CPU that multiplies bf16, else not at all.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/threads.h"
#include "kvant/status.h"
#include "model/matrix.h"

namespace kvant {

// Which path each row of a call takes.
struct RowPlan {
  static constexpr int kBlockRows = 64;

  std::vector<int> singles;  // indices of rows for the row path
  std::vector<int> blocks;   // first rows of blocks of kBlockRows for the block path
  int num_rows() const {
    return static_cast<int>(singles.size()) + kBlockRows * static_cast<int>(blocks.size());
  }
};

// out[r] = linear(x[r]), row r of out being out_stride floats after the one before.
struct DenseJob {
  const Linear* linear = nullptr;
  float* out = nullptr;
  size_t out_stride = 0;
};

// Rows by pages or ggml. One call at a time (it owns scratch memory).
class RowDense {
 public:
  explicit RowDense(ThreadPool& threads) : threads_(threads) {}
  void run(std::span<const DenseJob> jobs, const float* x, size_t x_stride,
           std::span<const int> rows);

 private:
  // Activation rows in the form of one of ggml's types, or of pages that are alike.
  struct Prepared {
    uint32_t type = 0;
    WeightPages::Shape shape;
    size_t row_bytes = 0;
    AlignedArray<std::byte> bytes;
  };
  const Prepared& prepare(const Matrix& w, const float* x, size_t x_stride,
                          std::span<const int> rows);

  ThreadPool& threads_;
  std::vector<Prepared> prepared_;
  size_t num_prepared_ = 0;  // of this call
};

// Blocks by oneDNN. One call at a time.
class BlockDense {
 public:
  explicit BlockDense(ThreadPool& threads);
  ~BlockDense();
  Status run(std::span<const DenseJob> jobs, const float* x, size_t x_stride,
             std::span<const int> blocks);
  // "oneDNN bf16" or "oneDNN f32": F32 weights are never rounded, others where the CPU multiplies
  // bf16.
  static std::string description(bool all_weights_f32);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Both, by a plan. All jobs of a call read the same x: [rows][x_stride], x_stride >= the jobs'
// cols. Jobs' outputs may be column ranges of one array. One call at a time.
class Dense {
 public:
  explicit Dense(ThreadPool& threads) : rows_(threads), blocks_(threads) {}
  Status run(std::span<const DenseJob> jobs, const float* x, size_t x_stride, const RowPlan& plan) {
    if (!plan.singles.empty()) rows_.run(jobs, x, x_stride, plan.singles);
    if (!plan.blocks.empty()) return blocks_.run(jobs, x, x_stride, plan.blocks);
    return {};
  }

 private:
  RowDense rows_;
  BlockDense blocks_;
};

}  // namespace kvant
