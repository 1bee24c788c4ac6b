// Decoder: a model's weights and its forward pass, built from a DecoderSpec. It knows no family and
// no tokenizer.
//
// A layer is x += [norm] attention(norm(x)); x += [norm] feed_forward(norm(x)), with the norms in
// brackets where the spec has post norms. One forward() or logits() at a time.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/layers.h"
#include "model/model.h"

namespace kvant {

class Decoder {
 public:
  // `source` stays with the decoder: native weights lie in its files. `where` names the model in
  // messages.
  static Result<std::unique_ptr<Decoder>> load(DecoderSpec spec,
                                               std::unique_ptr<TensorSource> source,
                                               const ModelOptions& options, ThreadPool& threads,
                                               const std::string& where);

  const ModelInfo& info() const { return info_; }

  // As Model's.
  Status forward(KvCache& cache, std::span<const ForwardItem> items, float* hidden);
  Status logits(const float* hidden, int num_rows, Model::Dense dense, float* out);

 private:
  struct Layer {
    std::vector<float> attention_norm, post_attention_norm, feed_forward_norm,
        post_feed_forward_norm;
    std::unique_ptr<AttentionLayer> attention;
    std::unique_ptr<FeedForwardLayer> feed_forward;
  };

  Decoder(DecoderSpec spec, std::unique_ptr<TensorSource> source, const ModelOptions& options,
          ThreadPool& threads)
      : spec_(std::move(spec)),
        source_(std::move(source)),
        options_(options),
        threads_(threads),
        dense_(threads) {}

  Status load_weights(const std::string& where);
  Result<Layer> load_layer(const LayerLoader& loader) const;
  void fill_shape(const std::string& where);
  void fill_weights(const WeightLoader& weights);
  Status check_tokens(std::span<const ForwardItem> items) const;
  // Positions of all rows and their paths.
  Status plan_rows(const KvCache& cache, std::span<const ForwardItem> items);
  void embed(std::span<const ForwardItem> items, float* x);
  Status run_layers(StepContext& step, std::span<const ForwardItem> items, float* hidden);
  // x += [post norm] y for every row; then `normed` = norm(x).
  void add_and_norm(const StepContext& step, const std::vector<float>& post, const float* y,
                    float* x, const std::vector<float>& norm, float* normed) const;

  DecoderSpec spec_;
  std::unique_ptr<TensorSource> source_;
  ModelOptions options_;
  ThreadPool& threads_;
  ModelInfo info_;
  Matrix embedding_;
  Linear output_;
  std::vector<float> output_norm_;
  std::vector<Layer> layers_;
  // Of the step in progress.
  Dense dense_;
  Scratch scratch_;
  RowPlan plan_;
  std::vector<int64_t> positions_;
  std::vector<AlignedArray<float>> rope_tables_;
};

}  // namespace kvant
