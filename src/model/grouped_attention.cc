// Attention with K and V heads shared by groups of query heads: projections, per-head norms, RoPE,
// the cache.
#include <cmath>

#include "kvant/format.h"
#include "model/layers.h"

namespace kvant {
namespace {

enum : size_t { kQueries = Scratch::kFirstFree, kKeys, kValues, kPlainKeys, kAttended };

constexpr int kMaxKeyDim = 1024;  // four times the widest head known

class GroupedAttention final : public AttentionLayer {
 public:
  Status load(const LayerLoader& loader);
  Status run(StepContext& step, const float* x, float* out) const override;

 private:
  size_t query_width() const { return static_cast<size_t>(num_queries_ * spec_.key_dim); }
  size_t key_width() const { return static_cast<size_t>(spec_.num_kv_heads * spec_.key_dim); }
  size_t value_width() const { return static_cast<size_t>(spec_.num_kv_heads * spec_.value_dim); }
  size_t attended_width() const { return static_cast<size_t>(num_queries_ * spec_.value_dim); }
  Status load_projections(const LayerLoader& loader);
  // Norms and rotates the heads of one row; `plain` (or null) gets them as they were before the
  // rotation.
  void place(const StepContext& step, size_t row, int heads, const std::vector<float>& norm,
             float* x, float* plain) const;

  int layer_ = 0;
  int num_queries_ = 0;
  LayerSpec spec_;
  AttentionParams params_;
  Linear query_, key_, value_, output_;
  std::vector<float> query_norm_, key_norm_;  // [key_dim] or empty
};

Status GroupedAttention::load(const LayerLoader& loader) {
  layer_ = loader.layer;
  num_queries_ = loader.spec.num_query_heads;
  spec_ = loader.layer_spec();
  if (spec_.key_dim > kMaxKeyDim) {
    return unsupported("heads of " + std::to_string(spec_.key_dim) + " channels, wanted at most " +
                       std::to_string(kMaxKeyDim));
  }
  params_.num_query_heads = num_queries_;
  params_.scale = loader.spec.attention_scale != 0
                      ? loader.spec.attention_scale
                      : 1.0f / std::sqrt(static_cast<float>(spec_.key_dim));
  params_.soft_cap = loader.spec.attention_soft_cap;
  KVANT_TRY(load_projections(loader));
  if (loader.spec.query_key_norm) {
    KVANT_ASSIGN(query_norm_, loader.norm(Tensor::kQueryNorm, spec_.key_dim));
    KVANT_ASSIGN(key_norm_, loader.norm(Tensor::kKeyNorm, spec_.key_dim));
  }
  return {};
}

Status GroupedAttention::load_projections(const LayerLoader& loader) {
  const DecoderSpec& spec = loader.spec;
  const int64_t hidden = spec.hidden_size;
  const auto queries = static_cast<int64_t>(query_width());
  const auto keys = static_cast<int64_t>(key_width());
  const auto values = static_cast<int64_t>(value_width());
  if (spec.fused_query_key_value) {
    const int64_t counts[] = {queries, keys, values};
    KVANT_ASSIGN(std::vector<Linear> parts,
                 loader.fused(Tensor::kQueryKeyValue, counts, hidden, spec.query_key_value_bias));
    query_ = std::move(parts[0]);
    key_ = std::move(parts[1]);
    value_ = std::move(parts[2]);
  } else {
    KVANT_ASSIGN(query_, loader.linear(Tensor::kQuery, queries, hidden, spec.query_key_value_bias));
    KVANT_ASSIGN(key_, loader.linear(Tensor::kKey, keys, hidden, spec.query_key_value_bias));
    KVANT_ASSIGN(value_, loader.linear(Tensor::kValue, values, hidden, spec.query_key_value_bias));
  }
  KVANT_ASSIGN(output_,
               loader.linear(Tensor::kAttentionOutput, hidden,
                             static_cast<int64_t>(attended_width()), spec.attention_output_bias));
  return {};
}

void GroupedAttention::place(const StepContext& step, size_t row, int heads,
                             const std::vector<float>& norm, float* x, float* plain) const {
  const int dim = spec_.key_dim;
  float scratch[kMaxKeyDim];
  for (int h = 0; h < heads; ++h) {
    float* head = x + h * dim;
    if (!norm.empty()) rms_norm(head, norm.data(), dim, step.spec.norm_epsilon, head);
    if (spec_.rope < 0) continue;
    const Rope& rope = step.spec.ropes[static_cast<size_t>(spec_.rope)];
    to_halves(rope, head, scratch);
    if (plain != nullptr) std::copy(head, head + dim, plain + h * dim);
    rotate(rope, step.rope_row(spec_.rope, row), head);
  }
}

bool wants_plain_keys(const KvCache& cache, int layer) {
  const std::string& name = cache.options().layers[static_cast<size_t>(layer)].formats.key;
  const auto format = find_format(name);
  return format.ok() && (*format)->needs.pre_rope_rows;
}

Status GroupedAttention::run(StepContext& step, const float* x, float* out) const {
  const size_t rows = step.num_rows();
  float* q = step.scratch.floats(kQueries, rows * query_width());
  float* k = step.scratch.floats(kKeys, rows * key_width());
  float* v = step.scratch.floats(kValues, rows * value_width());
  const DenseJob projections[] = {
      {&query_, q, query_width()}, {&key_, k, key_width()}, {&value_, v, value_width()}};
  KVANT_TRY(step.dense.run(projections, x, static_cast<size_t>(step.spec.hidden_size), step.plan));

  float* plain = wants_plain_keys(step.cache, layer_)
                     ? step.scratch.floats(kPlainKeys, rows * key_width())
                     : nullptr;
  step.for_rows([&](size_t row, int) {
    place(step, row, num_queries_, query_norm_, q + row * query_width(), nullptr);
    place(step, row, spec_.num_kv_heads, key_norm_, k + row * key_width(),
          plain == nullptr ? nullptr : plain + row * key_width());
  });

  float* attended = step.scratch.floats(kAttended, rows * attended_width());
  KVANT_TRY(step.cache.append(layer_, k, v, plain));
  KVANT_TRY(step.cache.attend(layer_, q, params_, attended));
  const DenseJob output{&output_, out, static_cast<size_t>(step.spec.hidden_size)};
  return step.dense.run({&output, 1}, attended, attended_width(), step.plan);
}

}  // namespace

CacheLayer grouped_cache_layer(const DecoderSpec& spec, const LayerSpec& layer) {
  CacheLayer out;
  out.num_kv_heads = layer.num_kv_heads;
  out.key_dim = layer.key_dim;
  out.value_dim = layer.value_dim;
  out.window = layer.window;
  if (layer.rope >= 0) {
    const Rope& rope = spec.ropes[static_cast<size_t>(layer.rope)];
    out.rope = {rope.inv_freq, rope.attention_factor};
  }
  return out;
}

Result<std::unique_ptr<AttentionLayer>> load_grouped_attention(const LayerLoader& loader) {
  auto out = std::make_unique<GroupedAttention>();
  KVANT_TRY(out->load(loader));
  return std::unique_ptr<AttentionLayer>(std::move(out));
}

}  // namespace kvant
