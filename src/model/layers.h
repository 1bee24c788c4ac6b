// The two parts of a decoder layer as interfaces, and what they work with in a step. An
// implementation holds its weights and is immutable; memory that a step needs comes from its
// context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/threads.h"
#include "kvant/cache.h"
#include "model/decoder_spec.h"
#include "model/dense.h"
#include "model/weights.h"

namespace kvant {

// Buffers of floats by number, grown when needed and kept for the next layer and step. What a
// buffer held is lost when it is asked for again. Numbers below kFirstFree belong to the decoder;
// an implementation numbers its own from there.
class Scratch {
 public:
  enum : size_t { kHidden, kNormed, kOutput, kFirstFree };
  float* floats(size_t number, size_t size) {
    if (number >= buffers_.size()) buffers_.resize(number + 1);
    buffers_[number].reserve_discarding(size);
    return buffers_[number].data();
  }
  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const auto& buffer : buffers_) sum += buffer.size() * sizeof(float);
    return sum;
  }

 private:
  std::vector<AlignedArray<float>> buffers_;
};

// One forward() in progress.
struct StepContext {
  const DecoderSpec& spec;
  KvCache& cache;
  Dense& dense;
  ThreadPool& threads;
  Scratch& scratch;
  const RowPlan& plan;
  std::span<const int64_t> positions;                // of every row
  std::span<const AlignedArray<float>> rope_tables;  // per rope of the spec: fill_rope_row's rows

  size_t num_rows() const { return positions.size(); }
  const float* rope_row(int rope, size_t row) const {
    const auto r = static_cast<size_t>(rope);
    return rope_tables[r].data() + row * 2 * static_cast<size_t>(spec.ropes[r].num_pairs());
  }
  // fn(row, worker) for every row, in parallel. Rows are grouped into items of fixed size.
  void for_rows(const std::function<void(size_t row, int worker)>& fn) const;
};

class AttentionLayer {
 public:
  virtual ~AttentionLayer() = default;
  // out = attention(x) without residual: x and out [rows][hidden_size], not the same. Appends to
  // the step's cache.
  virtual Status run(StepContext& step, const float* x, float* out) const = 0;
};

class FeedForwardLayer {
 public:
  virtual ~FeedForwardLayer() = default;
  // out = feed_forward(x) without residual.
  virtual Status run(StepContext& step, const float* x, float* out) const = 0;
};

// Loads weights by what they are, with the file's names.
struct LayerLoader {
  const DecoderSpec& spec;
  WeightLoader& weights;
  int layer = 0;

  const LayerSpec& layer_spec() const { return spec.layers[static_cast<size_t>(layer)]; }
  // y = W·x (+ bias where `has_bias`), in pages where that can be.
  Result<Linear> linear(Tensor tensor, int64_t rows, int64_t cols, bool has_bias) const;
  // `counts` matrices that lie one after another in the rows of one tensor, likewise.
  Result<std::vector<Linear>> fused(Tensor tensor, std::span<const int64_t> counts, int64_t cols,
                                    bool has_bias) const;
  // One whose rows can be read and sliced.
  Result<Linear> plain_linear(Tensor tensor, int64_t rows, int64_t cols, bool has_bias) const;
  // Norm weights, spec.norm_offset added.
  Result<std::vector<float>> norm(Tensor tensor, int64_t size) const;
};

// What the cache must hold for this layer (formats are left at their default).
CacheLayer grouped_cache_layer(const DecoderSpec& spec, const LayerSpec& layer);
CacheLayer latent_cache_layer(const DecoderSpec& spec, const LayerSpec& layer);
Result<std::unique_ptr<AttentionLayer>> load_grouped_attention(const LayerLoader& loader);
Result<std::unique_ptr<AttentionLayer>> load_latent_attention(const LayerLoader& loader);
Result<std::unique_ptr<FeedForwardLayer>> load_gated_mlp(const LayerLoader& loader);
Result<std::unique_ptr<FeedForwardLayer>> load_experts(const LayerLoader& loader);

}  // namespace kvant
