// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434). The cache holds one stream a token,
// shared by all heads: the normed latent of kv_rank channels, then a rotary key of rope_dim.
//
// Keys and values are never decompressed. A head's q·(U_k c) is (U_kᵀ q)·c, so queries are brought
// into the latent's space once (`absorb`), attention runs on the stream with the latent as values,
// and each head's result is decompressed afterwards (`expand`).
#include <ggml.h>

#include "model/ggml_cpu.h"
#include "model/layers.h"

namespace kvant {
namespace {

enum : size_t {
  kQueryLatent = Scratch::kFirstFree,
  kQueries,
  kLatentQueries,
  kStream,
  kAttended,
  kValues
};

class LatentAttention final : public AttentionLayer {
 public:
  Status load(const LayerLoader& loader);
  Status run(StepContext& step, const float* x, float* out) const override;

 private:
  size_t num_heads() const { return static_cast<size_t>(params_.num_query_heads); }
  size_t key_dim() const {
    return static_cast<size_t>(spec_.nope_dim + spec_.rope_dim);
  }  // decompressed
  size_t stream_dim() const { return static_cast<size_t>(spec_.kv_rank + spec_.rope_dim); }
  size_t rank() const { return static_cast<size_t>(spec_.kv_rank); }
  size_t nope() const { return static_cast<size_t>(spec_.nope_dim); }
  size_t value_dim() const { return static_cast<size_t>(spec_.value_dim); }

  Status load_queries(const LayerLoader& loader);
  // From one matrix whose rows are, head by head, those of U_k and then those of U_v.
  Status load_joint(const LayerLoader& loader);
  // From two stacks, the first transposed already.
  Status load_split(const LayerLoader& loader);
  Status project_queries(StepContext& step, const float* x, float* q) const;
  // q of all heads into the space of the stream.
  Status absorb_queries(StepContext& step, const float* q, float* latent_q) const;
  void rotate_part(const StepContext& step, size_t row, float* part) const;

  int layer_ = 0;
  int rope_ = 0;
  LatentSpec spec_;
  AttentionParams params_;
  Linear query_, query_down_, query_up_;  // query_, or the other two
  std::vector<float> query_norm_, latent_norm_;
  Linear latent_down_, output_;
  std::vector<Linear> absorb_;  // per head [kv_rank][nope_dim]
  std::vector<Linear> expand_;  // per head [value_dim][kv_rank]
};

Status LatentAttention::load(const LayerLoader& loader) {
  layer_ = loader.layer;
  rope_ = loader.layer_spec().rope;
  spec_ = loader.spec.latent;
  params_.num_query_heads = loader.spec.num_query_heads;
  params_.scale = loader.spec.attention_scale;
  KVANT_TRY(load_queries(loader));
  const int64_t hidden = loader.spec.hidden_size;
  const bool bias = loader.spec.query_key_value_bias;
  KVANT_ASSIGN(latent_down_, loader.linear(Tensor::kLatentDown, static_cast<int64_t>(stream_dim()),
                                           hidden, bias));
  KVANT_ASSIGN(latent_norm_, loader.norm(Tensor::kLatentNorm, spec_.kv_rank));
  const bool split = loader.weights.has(loader.spec.names.weight(Tensor::kLatentKeyUp, layer_));
  KVANT_TRY(split ? load_split(loader) : load_joint(loader));
  KVANT_ASSIGN(output_, loader.linear(Tensor::kAttentionOutput, hidden,
                                      static_cast<int64_t>(num_heads() * value_dim()),
                                      loader.spec.attention_output_bias));
  return {};
}

Status LatentAttention::load_queries(const LayerLoader& loader) {
  const int64_t hidden = loader.spec.hidden_size;
  const auto width = static_cast<int64_t>(num_heads() * key_dim());
  if (spec_.query_rank == 0) {
    KVANT_ASSIGN(query_, loader.linear(Tensor::kQuery, width, hidden, false));
    return {};
  }
  KVANT_ASSIGN(query_down_, loader.linear(Tensor::kLatentQueryDown, spec_.query_rank, hidden,
                                          loader.spec.query_key_value_bias));
  KVANT_ASSIGN(query_norm_, loader.norm(Tensor::kLatentQueryNorm, spec_.query_rank));
  KVANT_ASSIGN(query_up_, loader.linear(Tensor::kLatentQueryUp, width, spec_.query_rank, false));
  return {};
}

// The transpose of `m` in a type that keeps every value of m's own 16- or 32-bit type; bf16 for
// quantized ones.
Matrix transpose(const Matrix& m) {
  const auto rows = static_cast<size_t>(m.rows);
  const auto cols = static_cast<size_t>(m.cols);
  std::vector<float> plain(rows * cols);
  for (size_t r = 0; r < rows; ++r) {
    to_floats(m.type, m.row(static_cast<int64_t>(r)), plain.data() + r * cols, m.cols);
  }
  Matrix out;
  const bool is_plain = m.type == GGML_TYPE_F32 || m.type == GGML_TYPE_F16;
  out.type = is_plain ? m.type : static_cast<uint32_t>(GGML_TYPE_BF16);
  out.rows = m.cols;
  out.cols = m.rows;
  out.row_bytes = type_row_bytes(out.type, out.cols);
  auto bytes = std::make_shared<AlignedArray<std::byte>>(out.bytes());
  std::vector<float> column(rows);
  for (size_t c = 0; c < cols; ++c) {
    for (size_t r = 0; r < rows; ++r) column[r] = plain[r * cols + c];
    from_floats(out.type, column.data(), bytes->data() + c * out.row_bytes, out.cols);
  }
  out.data = bytes->data();
  out.owned = std::move(bytes);
  return out;
}

Status LatentAttention::load_joint(const LayerLoader& loader) {
  const auto per_head = static_cast<int64_t>(nope() + value_dim());
  KVANT_ASSIGN(const Linear up,
               loader.plain_linear(Tensor::kLatentUp, static_cast<int64_t>(num_heads()) * per_head,
                                   spec_.kv_rank, false));
  for (int64_t h = 0; h < static_cast<int64_t>(num_heads()); ++h) {
    absorb_.push_back({transpose(up.weight.slice(h * per_head, spec_.nope_dim)), {}});
    expand_.push_back({up.weight.slice(h * per_head + spec_.nope_dim, spec_.value_dim), {}});
  }
  return {};
}

Status LatentAttention::load_split(const LayerLoader& loader) {
  const auto heads = static_cast<int64_t>(num_heads());
  loader.weights.skip(loader.spec.names.weight(Tensor::kLatentUp, layer_));  // some files have both
  KVANT_ASSIGN(const Linear key, loader.plain_linear(Tensor::kLatentKeyUp, heads * spec_.kv_rank,
                                                     spec_.nope_dim, false));
  KVANT_ASSIGN(
      const Linear value,
      loader.plain_linear(Tensor::kLatentValueUp, heads * spec_.value_dim, spec_.kv_rank, false));
  for (int64_t h = 0; h < heads; ++h) {
    absorb_.push_back({key.weight.slice(h * spec_.kv_rank, spec_.kv_rank), {}});
    expand_.push_back({value.weight.slice(h * spec_.value_dim, spec_.value_dim), {}});
  }
  return {};
}

Status LatentAttention::project_queries(StepContext& step, const float* x, float* q) const {
  const auto hidden = static_cast<size_t>(step.spec.hidden_size);
  const size_t width = num_heads() * key_dim();
  if (spec_.query_rank == 0) {
    const DenseJob job{&query_, q, width};
    return step.dense.run({&job, 1}, x, hidden, step.plan);
  }
  const auto query_rank = static_cast<size_t>(spec_.query_rank);
  float* low = step.scratch.floats(kQueryLatent, step.num_rows() * query_rank);
  const DenseJob down{&query_down_, low, query_rank};
  KVANT_TRY(step.dense.run({&down, 1}, x, hidden, step.plan));
  step.for_rows([&](size_t row, int) {
    float* at = low + row * query_rank;
    rms_norm(at, query_norm_.data(), spec_.query_rank, step.spec.norm_epsilon, at);
  });
  const DenseJob up{&query_up_, q, width};
  return step.dense.run({&up, 1}, low, query_rank, step.plan);
}

void LatentAttention::rotate_part(const StepContext& step, size_t row, float* part) const {
  const Rope& rope = step.spec.ropes[static_cast<size_t>(rope_)];
  std::vector<float> scratch(static_cast<size_t>(spec_.rope_dim));
  to_halves(rope, part, scratch.data());
  rotate(rope, step.rope_row(rope_, row), part);
}

Status LatentAttention::absorb_queries(StepContext& step, const float* q, float* latent_q) const {
  const size_t q_stride = num_heads() * key_dim();
  const size_t out_stride = num_heads() * stream_dim();
  for (size_t h = 0; h < num_heads(); ++h) {
    const DenseJob job{&absorb_[h], latent_q + h * stream_dim(), out_stride};
    KVANT_TRY(step.dense.run({&job, 1}, q + h * key_dim(), q_stride, step.plan));
  }
  step.for_rows([&](size_t row, int) {
    for (size_t h = 0; h < num_heads(); ++h) {
      const float* from = q + row * q_stride + h * key_dim() + nope();
      float* part = latent_q + row * out_stride + h * stream_dim() + rank();
      std::copy(from, from + spec_.rope_dim, part);
      rotate_part(step, row, part);
    }
  });
  return {};
}

Status LatentAttention::run(StepContext& step, const float* x, float* out) const {
  const size_t rows = step.num_rows();
  const auto hidden = static_cast<size_t>(step.spec.hidden_size);
  float* q = step.scratch.floats(kQueries, rows * num_heads() * key_dim());
  KVANT_TRY(project_queries(step, x, q));
  float* latent_q = step.scratch.floats(kLatentQueries, rows * num_heads() * stream_dim());
  KVANT_TRY(absorb_queries(step, q, latent_q));

  float* stream = step.scratch.floats(kStream, rows * stream_dim());
  const DenseJob down{&latent_down_, stream, stream_dim()};
  KVANT_TRY(step.dense.run({&down, 1}, x, hidden, step.plan));
  step.for_rows([&](size_t row, int) {
    float* at = stream + row * stream_dim();
    rms_norm(at, latent_norm_.data(), spec_.kv_rank, step.spec.norm_epsilon, at);
    rotate_part(step, row, at + rank());
  });

  float* attended = step.scratch.floats(kAttended, rows * num_heads() * rank());
  KVANT_TRY(step.cache.append(layer_, stream, nullptr));
  KVANT_TRY(step.cache.attend(layer_, latent_q, params_, attended));

  const size_t value_stride = num_heads() * value_dim();
  float* values = step.scratch.floats(kValues, rows * value_stride);
  for (size_t h = 0; h < num_heads(); ++h) {
    const DenseJob job{&expand_[h], values + h * value_dim(), value_stride};
    KVANT_TRY(step.dense.run({&job, 1}, attended + h * rank(), num_heads() * rank(), step.plan));
  }
  const DenseJob output{&output_, out, hidden};
  return step.dense.run({&output, 1}, values, value_stride, step.plan);
}

}  // namespace

CacheLayer latent_cache_layer(const DecoderSpec& spec, const LayerSpec& layer) {
  CacheLayer out;
  out.num_kv_heads = 1;
  out.key_dim = spec.latent.kv_rank + spec.latent.rope_dim;
  out.value_dim = spec.latent.kv_rank;
  out.value_source = ValueSource::kKeyRange;
  out.value_offset = 0;
  out.window = layer.window;
  return out;
}

Result<std::unique_ptr<AttentionLayer>> load_latent_attention(const LayerLoader& loader) {
  auto out = std::make_unique<LatentAttention>();
  KVANT_TRY(out->load(loader));
  return std::unique_ptr<AttentionLayer>(std::move(out));
}

}  // namespace kvant
