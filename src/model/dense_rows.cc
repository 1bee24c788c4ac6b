// The row path. Weights in pages are multiplied page by page (weight_pages.h). Of others, every
// output is one vec_dot call of ggml's on one weight row and one activation row. Weight rows are
// cut into items of fixed size; inside an item a tile of activation rows stays in the first-level
// cache while the weight rows pass.
#include <algorithm>
#include <array>

#include "model/dense.h"
#include "model/ggml_cpu.h"

namespace kvant {
namespace {

constexpr int64_t kWeightRowsPerItem =
    32;                                 // 576 wide: 11 KB of Q4_1, a microsecond and a half of work
constexpr size_t kItemBytes = 1 << 16;  // of pages: some three microseconds
constexpr size_t kTileRows = WeightPages::kMostRows;

int64_t rows_per_item(const Matrix& w) {
  if (w.pages == nullptr) return kWeightRowsPerItem;
  return static_cast<int64_t>(std::max<size_t>(1, kItemBytes / w.pages->page_bytes())) *
         WeightPages::kPageRows;
}

size_t num_tiles(size_t num_rows) { return (num_rows + kTileRows - 1) / kTileRows; }

// One job cut into items.
struct Cut {
  const DenseJob* job;
  DotKernel kernel;  // of weights that aren't in pages
  const std::byte* activations;
  size_t activation_bytes;
  size_t first_item;
};

float* output(const DenseJob& job, int row, int64_t weight_row) {
  return job.out + static_cast<size_t>(row) * job.out_stride + weight_row;
}

void multiply_rows(const Cut& cut, int64_t first, int64_t last, std::span<const int> rows) {
  const Linear& linear = *cut.job->linear;
  const Matrix& w = linear.weight;
  const int n = static_cast<int>(w.cols);
  for (size_t tile = 0; tile < rows.size(); tile += kTileRows) {
    const size_t tile_end = std::min(tile + kTileRows, rows.size());
    for (int64_t r = first; r < last; ++r) {
      const float bias = linear.bias.empty() ? 0.0f : linear.bias[static_cast<size_t>(r)];
      for (size_t i = tile; i < tile_end; ++i) {
        float* out = output(*cut.job, rows[i], r);
        cut.kernel.dot(n, out, 0, w.row(r), 0, cut.activations + i * cut.activation_bytes, 0, 1);
        if (!linear.bias.empty()) *out += bias;
      }
    }
  }
}

void multiply_pages(const Cut& cut, int64_t first, int64_t last, std::span<const int> rows) {
  constexpr auto kPage = static_cast<size_t>(WeightPages::kPageRows);
  const Linear& linear = *cut.job->linear;
  const WeightPages& pages = *linear.weight.pages;
  alignas(kAlignment) std::array<float, kTileRows * kPage> products;
  for (int64_t row = first; row < last; row += WeightPages::kPageRows) {
    const auto count = static_cast<size_t>(std::min(WeightPages::kPageRows, last - row));
    const float* bias = linear.bias.empty() ? nullptr : linear.bias.data() + row;
    for (size_t tile = 0; tile < rows.size(); tile += kTileRows) {
      const size_t num_rows = std::min(kTileRows, rows.size() - tile);
      pages.multiply(row / WeightPages::kPageRows, cut.activations + tile * cut.activation_bytes,
                     static_cast<int>(num_rows), products.data(), kPage);
      for (size_t i = 0; i < num_rows; ++i) {
        const float* from = products.data() + i * kPage;
        float* out = output(*cut.job, rows[tile + i], row);
        for (size_t r = 0; r < count; ++r) out[r] = bias == nullptr ? from[r] : from[r] + bias[r];
      }
    }
  }
}

}  // namespace

const RowDense::Prepared& RowDense::prepare(const Matrix& w, const float* x, size_t x_stride,
                                            std::span<const int> rows) {
  // Loading has checked that the type can be multiplied.
  const DotKernel kernel = w.pages == nullptr ? dot_kernel(w.type).value() : DotKernel();
  const WeightPages::Shape shape = w.pages == nullptr ? WeightPages::Shape() : w.pages->shape();
  for (size_t i = 0; i < num_prepared_; ++i) {
    const Prepared& p = prepared_[i];
    if (p.type == kernel.activation_type && p.shape == shape) return p;
  }
  if (num_prepared_ == prepared_.size()) prepared_.emplace_back();
  Prepared& out = prepared_[num_prepared_++];
  out.type = kernel.activation_type;
  out.shape = shape;
  out.row_bytes = w.pages == nullptr ? type_row_bytes(out.type, w.cols) : w.pages->prepared_bytes();
  out.bytes.reserve_discarding(out.row_bytes * rows.size());
  threads_.run(num_tiles(rows.size()), [&](size_t tile, int) {
    const size_t first = tile * kTileRows, count = std::min(kTileRows, rows.size() - first);
    std::byte* const to = out.bytes.data() + first * out.row_bytes;
    for (size_t i = 0; i < count; ++i) {
      const float* from = x + static_cast<size_t>(rows[first + i]) * x_stride;
      if (w.pages != nullptr) {
        w.pages->prepare(from, i, count, to);
      } else {
        kernel.quantize(from, to + i * out.row_bytes, w.cols);
      }
    }
  });
  return out;
}

void RowDense::run(std::span<const DenseJob> jobs, const float* x, size_t x_stride,
                   std::span<const int> rows) {
  num_prepared_ = 0;
  prepared_.reserve(jobs.size());  // references into it stay valid
  std::vector<Cut> cuts;
  size_t num_items = 0;
  for (const DenseJob& job : jobs) {
    const Matrix& w = job.linear->weight;
    const Prepared& p = prepare(w, x, x_stride, rows);
    const DotKernel kernel = w.pages == nullptr ? dot_kernel(w.type).value() : DotKernel();
    cuts.push_back({&job, kernel, p.bytes.data(), p.row_bytes, num_items});
    num_items += static_cast<size_t>((w.rows + rows_per_item(w) - 1) / rows_per_item(w));
  }
  threads_.run(num_items, [&](size_t item, int) {
    size_t c = cuts.size() - 1;
    while (item < cuts[c].first_item) --c;
    const Matrix& w = cuts[c].job->linear->weight;
    const int64_t first = static_cast<int64_t>(item - cuts[c].first_item) * rows_per_item(w);
    const int64_t last = std::min(first + rows_per_item(w), w.rows);
    (w.pages == nullptr ? multiply_rows : multiply_pages)(cuts[c], first, last, rows);
  });
}

}  // namespace kvant
