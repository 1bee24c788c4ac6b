#include "calibrate/range_statistics.h"

#include <algorithm>
#include <limits>

#include "base/float_types.h"

namespace kvant {
namespace {

SideRange empty_side(int num_heads, int dim) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  SideRange side{.dim = dim, .heads = std::vector<HeadRange>(static_cast<size_t>(num_heads))};
  for (HeadRange& head : side.heads) {
    head.low.assign(static_cast<size_t>(dim), kInfinity);
    head.high.assign(static_cast<size_t>(dim), -kInfinity);
  }
  return side;
}

void add_row(const float* row, HeadRange& to) {
  for (size_t i = 0; i < to.low.size(); ++i) {
    const float x = bf16_to_f32(f32_to_bf16(row[i]));
    to.low[i] = std::min(to.low[i], x);
    to.high[i] = std::max(to.high[i], x);
    to.magnitudes.add(x);
  }
}

}  // namespace

Magnitudes SideRange::all() const {
  Magnitudes out;
  for (const HeadRange& head : heads) out.merge(head.magnitudes);
  return out;
}

RangeStatistics::RangeStatistics(const ModelInfo& info, int64_t skipped, ThreadPool& threads)
    : skipped_(skipped), threads_(threads) {
  for (const CacheLayer& layer : info.cache_layers) {
    LayerRanges& ranges = layers_.emplace_back();
    if (layer.shares >= 0 || layer.num_kv_heads == 0) continue;
    ranges.query = empty_side(info.num_query_heads, layer.key_dim);
    ranges.key = empty_side(layer.num_kv_heads, layer.key_dim);
    if (layer.value_source == ValueSource::kOwnStream)
      ranges.value = empty_side(layer.num_kv_heads, layer.value_dim);
  }
}

void RangeStatistics::see(const ObservedRows& rows, SideRange LayerRanges::*side) {
  SideRange& to = layers_[static_cast<size_t>(rows.layer)].*side;
  const auto first =
      static_cast<size_t>(std::clamp<int64_t>(skipped_ - rows.first_position, 0, rows.num_tokens));
  threads_.run(to.heads.size(), [&](size_t head, int) {
    for (size_t t = first; t < static_cast<size_t>(rows.num_tokens); ++t)
      add_row(rows.row(t, head), to.heads[head]);
  });
}

}  // namespace kvant
