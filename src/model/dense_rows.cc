// The row path: every output is one vec_dot call on one weight row and one activation row. Weight
// rows are cut into items of fixed size; inside an item a tile of activation rows stays in the
// first-level cache while the weight rows pass.
#include <algorithm>

#include "model/dense.h"
#include "model/ggml_cpu.h"

namespace kvant {
namespace {

constexpr int64_t kWeightRowsPerItem =
    32;  // 576 wide: 11 KB of Q4_1, a microsecond and a half of work
constexpr size_t kTileRows = 16;

// One job cut into items.
struct Cut {
  const DenseJob* job;
  DotKernel kernel;
  const std::byte* activations;
  size_t activation_bytes;
  size_t first_item;
};

void multiply(const Cut& cut, int64_t first, std::span<const int> rows) {
  const Linear& linear = *cut.job->linear;
  const Matrix& w = linear.weight;
  const int64_t last = std::min(first + kWeightRowsPerItem, w.rows);
  const int n = static_cast<int>(w.cols);
  for (size_t tile = 0; tile < rows.size(); tile += kTileRows) {
    const size_t tile_end = std::min(tile + kTileRows, rows.size());
    for (int64_t r = first; r < last; ++r) {
      const float bias = linear.bias.empty() ? 0.0f : linear.bias[static_cast<size_t>(r)];
      for (size_t i = tile; i < tile_end; ++i) {
        float* out = cut.job->out + static_cast<size_t>(rows[i]) * cut.job->out_stride + r;
        cut.kernel.dot(n, out, 0, w.row(r), 0, cut.activations + i * cut.activation_bytes, 0, 1);
        if (!linear.bias.empty()) *out += bias;
      }
    }
  }
}

}  // namespace

const RowDense::Quantized& RowDense::quantize(const Linear& linear, const float* x, size_t x_stride,
                                              std::span<const int> rows) {
  // Loading has checked that the type can be multiplied.
  const DotKernel kernel = dot_kernel(linear.weight.type).value();
  for (size_t i = 0; i < num_quantized_; ++i) {
    if (quantized_[i].type == kernel.activation_type) return quantized_[i];
  }
  if (num_quantized_ == quantized_.size()) quantized_.emplace_back();
  Quantized& out = quantized_[num_quantized_++];
  out.type = kernel.activation_type;
  out.row_bytes = type_row_bytes(out.type, linear.weight.cols);
  out.bytes.resize(std::max(out.bytes.size(), out.row_bytes * rows.size()));
  const size_t items = (rows.size() + kTileRows - 1) / kTileRows;
  threads_.run(items, [&](size_t item, int) {
    for (size_t i = item * kTileRows; i < std::min((item + 1) * kTileRows, rows.size()); ++i) {
      kernel.quantize(x + static_cast<size_t>(rows[i]) * x_stride,
                      out.bytes.data() + i * out.row_bytes, linear.weight.cols);
    }
  });
  return out;
}

void RowDense::run(std::span<const DenseJob> jobs, const float* x, size_t x_stride,
                   std::span<const int> rows) {
  num_quantized_ = 0;
  quantized_.reserve(jobs.size());  // references into it stay valid
  std::vector<Cut> cuts;
  size_t num_items = 0;
  for (const DenseJob& job : jobs) {
    const Quantized& q = quantize(*job.linear, x, x_stride, rows);
    cuts.push_back({&job, dot_kernel(job.linear->weight.type).value(), q.bytes.data(), q.row_bytes,
                    num_items});
    num_items += static_cast<size_t>((job.linear->weight.rows + kWeightRowsPerItem - 1) /
                                     kWeightRowsPerItem);
  }
  threads_.run(num_items, [&](size_t item, int) {
    size_t c = cuts.size() - 1;
    while (item < cuts[c].first_item) --c;
    multiply(cuts[c], static_cast<int64_t>(item - cuts[c].first_item) * kWeightRowsPerItem, rows);
  });
}

}  // namespace kvant
