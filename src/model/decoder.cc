#include "model/decoder.h"

#include <array>
#include <numeric>

#include "model/ggml_cpu.h"

namespace kvant {
namespace {

using LoadAttention = Result<std::unique_ptr<AttentionLayer>> (*)(const LayerLoader&);
using LoadFeedForward = Result<std::unique_ptr<FeedForwardLayer>> (*)(const LayerLoader&);
struct AttentionRow {
  LoadAttention load;
  CacheLayer (*cache_layer)(const DecoderSpec&, const LayerSpec&);
};

// In the order of AttentionKind and FeedForwardKind.
constexpr std::array<AttentionRow, 2> kAttention = {
    {{load_grouped_attention, grouped_cache_layer}, {load_latent_attention, latent_cache_layer}}};
constexpr std::array<LoadFeedForward, 2> kFeedForward = {load_gated_mlp, load_experts};

constexpr int kBlockRows = RowPlan::kBlockRows;
static_assert(kBlockRows == kPageTokens, "a block of the many-row path is a page of the cache");

// The cache's own messages name the layer already.
Status in_layer(const Status& status, size_t layer) {
  const std::string where = "layer " + std::to_string(layer);
  return status.message().starts_with(where + ":") ? status : status.with_context(where);
}

}  // namespace

Result<std::unique_ptr<Decoder>> Decoder::load(DecoderSpec spec,
                                               std::unique_ptr<TensorSource> source,
                                               const ModelOptions& options, ThreadPool& threads,
                                               const std::string& where) {
  KVANT_TRY(load_ggml_cpu());
  std::unique_ptr<Decoder> out(new Decoder(std::move(spec), std::move(source), options, threads));
  out->fill_shape(where);
  if (options.accept) KVANT_TRY(options.accept(out->info_));
  KVANT_TRY(out->load_weights(where));
  return out;
}

Status Decoder::load_weights(const std::string& where) {
  WeightLoader weights(*source_, options_.weights, threads_);
  const LayerLoader outer{spec_, weights};
  KVANT_ASSIGN(embedding_, weights.matrix(spec_.names.weight(Tensor::kEmbedding), spec_.vocab_size,
                                          spec_.hidden_size));
  if (spec_.tied_embeddings) {
    output_.weight = weights.in_pages(embedding_);
    weights.skip(spec_.names.weight(Tensor::kOutput));
  } else {
    KVANT_ASSIGN(output_,
                 outer.linear(Tensor::kOutput, spec_.vocab_size, spec_.hidden_size, false));
  }
  KVANT_ASSIGN(output_norm_, outer.norm(Tensor::kOutputNorm, spec_.hidden_size));
  for (int i = 0; i < static_cast<int>(spec_.layers.size()); ++i) {
    KVANT_ASSIGN(Layer layer, load_layer({spec_, weights, i}));
    layers_.push_back(std::move(layer));
  }
  KVANT_TRY(weights.check_all_used(spec_.ignored_prefixes).with_context(where));
  rope_tables_.resize(spec_.ropes.size());
  source_->forget();  // most weights lie in pages now, or were converted
  fill_weights(weights);
  return {};
}

Result<Decoder::Layer> Decoder::load_layer(const LayerLoader& loader) const {
  const LayerSpec& spec = loader.layer_spec();
  Layer out;
  KVANT_ASSIGN(out.attention_norm, loader.norm(Tensor::kAttentionNorm, spec_.hidden_size));
  KVANT_ASSIGN(out.feed_forward_norm, loader.norm(Tensor::kFeedForwardNorm, spec_.hidden_size));
  if (spec_.post_norms) {
    KVANT_ASSIGN(out.post_attention_norm,
                 loader.norm(Tensor::kPostAttentionNorm, spec_.hidden_size));
    KVANT_ASSIGN(out.post_feed_forward_norm,
                 loader.norm(Tensor::kPostFeedForwardNorm, spec_.hidden_size));
  }
  KVANT_ASSIGN(out.attention, kAttention[static_cast<size_t>(spec.attention)].load(loader));
  KVANT_ASSIGN(out.feed_forward, kFeedForward[static_cast<size_t>(spec.feed_forward)](loader));
  return out;
}

void Decoder::fill_shape(const std::string& where) {
  info_.path = where;
  info_.architecture = spec_.architecture;
  info_.name = spec_.name;
  info_.num_layers = static_cast<int>(spec_.layers.size());
  info_.hidden_size = spec_.hidden_size;
  info_.num_query_heads = spec_.num_query_heads;
  info_.vocab_size = spec_.vocab_size;
  info_.max_positions = spec_.max_positions;
  info_.traits = {.qk_norm = spec_.query_key_norm, .declared = spec_.declared_kv};
  info_.cache_scales = spec_.cache_scales;
  for (const LayerSpec& layer : spec_.layers) {
    const CacheLayer cached =
        kAttention[static_cast<size_t>(layer.attention)].cache_layer(spec_, layer);
    LayerShape shape;
    shape.num_kv_heads = cached.num_kv_heads;
    shape.key_dim = cached.key_dim;
    shape.value_dim = cached.value_source == ValueSource::kOwnStream ? cached.value_dim : 0;
    shape.window = cached.window;
    shape.quantizable = cached.value_source == ValueSource::kOwnStream;
    info_.cache_layers.push_back(cached);
    info_.layer_shapes.push_back(shape);
  }
  const WeightLoader weights(*source_, options_.weights, threads_);
  info_.conversion_bytes = weights.conversion_bytes();
  info_.notes = weights.notes();
}

void Decoder::fill_weights(const WeightLoader& weights) {
  info_.weight_bytes = weights.bytes();
  info_.num_parameters = weights.parameters();
  info_.weight_types.assign(weights.types().begin(), weights.types().end());
  const bool all_f32 = weights.types().size() == 1 && weights.types().contains("F32");
  info_.compute = "few rows: " + weights.row_path() + "; many rows: " +
                  (options_.invariant ? std::string("the same") : BlockDense::description(all_f32));
}

Status Decoder::check_tokens(std::span<const ForwardItem> items) const {
  for (const ForwardItem& item : items) {
    for (int32_t token : item.tokens) {
      if (token < 0 || token >= spec_.vocab_size) {
        return invalid_argument("token " + std::to_string(token) + ", wanted 0 to " +
                                std::to_string(spec_.vocab_size - 1));
      }
    }
  }
  return {};
}

Status Decoder::plan_rows(const KvCache& cache, std::span<const ForwardItem> items) {
  plan_ = {};
  positions_.clear();
  for (const ForwardItem& item : items) {
    KVANT_ASSIGN(const int64_t start, cache.length(item.sequence));
    const auto count = static_cast<int64_t>(item.tokens.size());
    int64_t i = 0;
    while (i < count) {
      const int row = static_cast<int>(positions_.size());
      const bool is_block =
          !options_.invariant && (start + i) % kBlockRows == 0 && count - i >= kBlockRows;
      const int rows = is_block ? kBlockRows : 1;
      (is_block ? plan_.blocks : plan_.singles).push_back(row);
      for (int r = 0; r < rows; ++r) positions_.push_back(start + i + r);
      i += rows;
    }
  }
  return {};
}

void Decoder::embed(std::span<const ForwardItem> items, float* x) {
  std::vector<int32_t> tokens;
  for (const ForwardItem& item : items)
    tokens.insert(tokens.end(), item.tokens.begin(), item.tokens.end());
  const auto hidden = static_cast<size_t>(spec_.hidden_size);
  for (size_t row = 0; row < tokens.size(); ++row) {
    to_floats(embedding_.type, embedding_.row(tokens[row]), x + row * hidden, spec_.hidden_size);
    for (size_t c = 0; c < hidden; ++c) x[row * hidden + c] *= spec_.embedding_scale;
  }
}

void Decoder::add_and_norm(const StepContext& step, const std::vector<float>& post, const float* y,
                           float* x, const std::vector<float>& norm, float* normed) const {
  const int n = spec_.hidden_size;
  const auto hidden = static_cast<size_t>(n);
  step.for_rows([&](size_t row, int) {
    float* x_row = x + row * hidden;
    float* out = normed + row * hidden;
    if (post.empty()) {
      add(y + row * hidden, x_row, n);
    } else {
      rms_norm(y + row * hidden, post.data(), n, spec_.norm_epsilon, out);
      add(out, x_row, n);
    }
    rms_norm(x_row, norm.data(), n, spec_.norm_epsilon, out);
  });
}

Status Decoder::run_layers(StepContext& step, std::span<const ForwardItem> items, float* hidden) {
  const auto width = static_cast<size_t>(spec_.hidden_size);
  const size_t size = step.num_rows() * width;
  float* x = scratch_.floats(Scratch::kHidden, size);
  float* normed = scratch_.floats(Scratch::kNormed, size);
  float* y = scratch_.floats(Scratch::kOutput, size);
  embed(items, x);
  step.for_rows([&](size_t row, int) {
    rms_norm(x + row * width, layers_[0].attention_norm.data(), spec_.hidden_size,
             spec_.norm_epsilon, normed + row * width);
  });
  for (size_t l = 0; l < layers_.size(); ++l) {
    const Layer& layer = layers_[l];
    const bool is_last = l + 1 == layers_.size();
    KVANT_TRY(in_layer(layer.attention->run(step, normed, y), l));
    add_and_norm(step, layer.post_attention_norm, y, x, layer.feed_forward_norm, normed);
    KVANT_TRY(in_layer(layer.feed_forward->run(step, normed, y), l));
    add_and_norm(step, layer.post_feed_forward_norm, y, x,
                 is_last ? output_norm_ : layers_[l + 1].attention_norm, is_last ? hidden : normed);
  }
  return {};
}

Status Decoder::forward(KvCache& cache, std::span<const ForwardItem> items, float* hidden) {
  KVANT_TRY(check_tokens(items));
  KVANT_TRY(plan_rows(cache, items));
  std::vector<StepItem> batch;
  for (const ForwardItem& item : items)
    batch.push_back({item.sequence, static_cast<int>(item.tokens.size())});
  KVANT_TRY(cache.begin_step(batch));

  StepContext step{spec_, cache, dense_, threads_, scratch_, plan_, positions_, rope_tables_};
  for (size_t r = 0; r < spec_.ropes.size(); ++r) {
    const Rope& rope = spec_.ropes[r];
    rope_tables_[r].reserve_discarding(positions_.size() * 2 * rope.inv_freq.size());
    step.for_rows([&](size_t row, int) {
      fill_rope_row(rope, positions_[row], rope_tables_[r].data() + row * 2 * rope.inv_freq.size());
    });
  }
  const Status status = run_layers(step, items, hidden);
  if (!status.ok()) {
    cache.abort_step();
    return status;
  }
  return cache.end_step();
}

Status Decoder::logits(const float* hidden, int num_rows, Model::Dense dense, float* out) {
  RowPlan plan;
  if (dense == Model::Dense::kBlock && !options_.invariant) {
    if (num_rows % kBlockRows != 0) {
      return invalid_argument(std::to_string(num_rows) +
                              " rows of the block path, wanted a multiple of 64");
    }
    for (int row = 0; row < num_rows; row += kBlockRows) plan.blocks.push_back(row);
  } else {
    plan.singles.resize(static_cast<size_t>(num_rows));
    std::iota(plan.singles.begin(), plan.singles.end(), 0);
  }
  const auto vocabulary = static_cast<size_t>(spec_.vocab_size);
  const DenseJob job{&output_, out, vocabulary};
  KVANT_TRY(dense_.run({&job, 1}, hidden, static_cast<size_t>(spec_.hidden_size), plan));
  if (spec_.logit_soft_cap == 0) return {};
  threads_.run(static_cast<size_t>(num_rows), [&](size_t row, int) {
    soft_cap(out + row * vocabulary, spec_.logit_soft_cap, spec_.vocab_size);
  });
  return {};
}

}  // namespace kvant
