#include "calibrate/range_statistics.h"

#include <algorithm>
#include <limits>

#include "base/float_types.h"
#include "formats/stored_scale.h"

namespace kvant {
namespace {

SideRange empty_side(int num_heads, int dim, bool channels) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto width = static_cast<size_t>(dim);
  SideRange side{.dim = dim, .heads = std::vector<HeadRange>(static_cast<size_t>(num_heads))};
  for (HeadRange& head : side.heads) {
    head.low.assign(width, kInfinity);
    head.high.assign(width, -kInfinity);
    if (channels) head.channels.resize(width);
  }
  return side;
}

// Rows as a page would take them.
void add_rows(std::span<const float> rows, HeadRange& to) {
  const size_t dim = to.low.size();
  for (size_t first = 0; first < rows.size(); first += dim) {
    for (size_t i = 0; i < dim; ++i) {
      const float x = rows[first + i];
      to.low[i] = std::min(to.low[i], x);
      to.high[i] = std::max(to.high[i], x);
      to.magnitudes.add(x);
      if (!to.channels.empty()) to.channels[i].add(x);
    }
  }
}

uint64_t bytes_of(const SideRange& side) {
  uint64_t bytes = 0;
  for (const HeadRange& head : side.heads) {
    bytes += Magnitudes::kCounters * sizeof(int64_t) + head.low.size() * 2 * sizeof(float) +
             head.channels.size() * ChannelMagnitudes::kCounters * sizeof(uint32_t);
  }
  return bytes;
}

}  // namespace

Magnitudes SideRange::all() const {
  Magnitudes out;
  for (const HeadRange& head : heads) out.merge(head.magnitudes);
  return out;
}

RangeStatistics::RangeStatistics(const ModelInfo& info, const RangeOptions& options,
                                 ThreadPool& threads)
    : options_(options), threads_(threads) {
  const auto side = [&](int heads, int dim) {
    if (options.rotated) rotations_.try_emplace(dim, dim, uint64_t{0}, RotationSigns::kSeeded);
    return empty_side(heads, dim, options.channels);
  };
  for (const CacheLayer& layer : info.cache_layers) {
    LayerRanges& ranges = layers_.emplace_back();
    if (layer.shares >= 0 || layer.num_kv_heads == 0) continue;
    ranges.query = side(info.num_query_heads, layer.key_dim);
    ranges.key = side(layer.num_kv_heads, layer.key_dim);
    if (layer.value_source == ValueSource::kOwnStream)
      ranges.value = side(layer.num_kv_heads, layer.value_dim);
  }
}

uint64_t RangeStatistics::bytes() const {
  uint64_t bytes = 0;
  for (const LayerRanges& layer : layers_)
    bytes += bytes_of(layer.query) + bytes_of(layer.key) + bytes_of(layer.value);
  return bytes;
}

void RangeStatistics::see(const ObservedRows& rows, SideRange LayerRanges::*side) {
  SideRange& to = layers_[static_cast<size_t>(rows.layer)].*side;
  const auto num_tokens = static_cast<size_t>(rows.num_tokens);
  const auto first = static_cast<size_t>(
      std::clamp<int64_t>(options_.skipped - rows.first_position, 0, rows.num_tokens));
  const auto dim = static_cast<size_t>(rows.dim);
  threads_.run(to.heads.size(), [&](size_t head, int) {
    AlignedArray<float> stored((num_tokens - first) * dim);
    for (size_t t = first; t < num_tokens; ++t) {
      const float* row = rows.row(t, head);
      std::transform(row, row + dim, stored.data() + (t - first) * dim, [&](float x) {
        const float kept = bf16_to_f32(f32_to_bf16(x));
        return options_.rotated ? saturate(kept) : kept;
      });
    }
    if (options_.rotated) rotations_.at(rows.dim).turn(stored.data(), num_tokens - first);
    add_rows({stored.data(), (num_tokens - first) * dim}, to.heads[head]);
  });
}

}  // namespace kvant
