#include "model/layers.h"

namespace kvant {
namespace {

constexpr size_t kRowsPerItem = 4;

}  // namespace

void StepContext::for_rows(const std::function<void(size_t row, int worker)>& fn) const {
  const size_t n = num_rows();
  threads.run((n + kRowsPerItem - 1) / kRowsPerItem, [&](size_t item, int worker) {
    for (size_t r = item * kRowsPerItem; r < std::min(n, (item + 1) * kRowsPerItem); ++r)
      fn(r, worker);
  });
}

Result<Linear> LayerLoader::linear(Tensor tensor, int64_t rows, int64_t cols, bool has_bias) const {
  KVANT_ASSIGN(Linear out, plain_linear(tensor, rows, cols, has_bias));
  out.weight = weights.in_pages(std::move(out.weight));
  return out;
}

Result<Linear> LayerLoader::plain_linear(Tensor tensor, int64_t rows, int64_t cols,
                                         bool has_bias) const {
  Linear out;
  KVANT_ASSIGN(out.weight, weights.matrix(spec.names.weight(tensor, layer), rows, cols));
  if (has_bias) {
    KVANT_ASSIGN(out.bias, weights.vector(spec.names.bias(tensor, layer), rows));
  }
  return out;
}

Result<std::vector<Linear>> LayerLoader::fused(Tensor tensor, std::span<const int64_t> counts,
                                               int64_t cols, bool has_bias) const {
  int64_t rows = 0;
  for (int64_t count : counts) rows += count;
  KVANT_ASSIGN(const Linear whole, plain_linear(tensor, rows, cols, has_bias));
  std::vector<Linear> out;
  int64_t first = 0;
  for (int64_t count : counts) {
    Linear part;
    part.weight = weights.in_pages(whole.weight.slice(first, count));
    if (has_bias) part.bias.assign(whole.bias.begin() + first, whole.bias.begin() + first + count);
    out.push_back(std::move(part));
    first += count;
  }
  return out;
}

Result<std::vector<float>> LayerLoader::norm(Tensor tensor, int64_t size) const {
  KVANT_ASSIGN(std::vector<float> out, weights.vector(spec.names.weight(tensor, layer), size));
  for (float& w : out) w += spec.norm_offset;
  return out;
}

}  // namespace kvant
