#include "evaluate/attention_error.h"

#include <algorithm>
#include <cmath>

#include "attention/forwarding_cache.h"
#include "evaluate/score_error.h"

namespace kvant {
namespace {

constexpr int64_t kQueries = AttentionTrace::kQueries;
constexpr int64_t kScoreStep = 8;  // every so many queries the scores are compared, too

size_t row_floats(const CacheLayer& layer, int dim) {
  return static_cast<size_t>(layer.num_kv_heads) * static_cast<size_t>(dim);
}

// The first token that any of the last page's queries sees, at a page's start.
int64_t first_token(const CacheLayer& layer, int64_t tokens) {
  const int64_t before = layer.window == 0 ? 0 : tokens - kQueries - layer.window + 1;
  return std::max<int64_t>(before, 0) / kPageTokens * kPageTokens;
}

// Inside the step of the last page, while everything that its queries see is still there.
Status read_seen_rows(const KvCache& cache, SequenceId sequence, int layer, int64_t tokens,
                      AttentionTrace::Layer& to) {
  const size_t k_row = row_floats(to.shape, to.shape.key_dim);
  const size_t v_row = row_floats(to.shape, to.shape.value_dim);
  to.k.assign(static_cast<size_t>(tokens) * k_row, 0.0f);
  to.v.assign(static_cast<size_t>(tokens) * v_row, 0.0f);
  const int64_t first = first_token(to.shape, tokens);
  return cache.read(sequence, layer, first, tokens - first, tokens - 1,
                    to.k.data() + static_cast<size_t>(first) * k_row,
                    to.v.data() + static_cast<size_t>(first) * v_row);
}

// Passes everything on, and keeps what the last step's attend() was given and answered.
class RecordingCache final : public ForwardingCache {
 public:
  RecordingCache(KvCache& inner, AttentionTrace& trace) : ForwardingCache(inner), trace_(trace) {}

  Status begin_step(std::span<const StepItem> batch) override {
    sequence_ = batch[0].sequence;
    KVANT_ASSIGN(const int64_t length, inner().length(sequence_));
    is_last_ = length + batch[0].num_tokens == trace_.tokens;
    return inner().begin_step(batch);
  }
  Status attend(int layer, const float* q, const AttentionParams& params, float* out,
                PageMass* mass) override {
    KVANT_TRY(inner().attend(layer, q, params, out, mass));
    if (!is_last_) return {};
    AttentionTrace::Layer& to = trace_.layers[static_cast<size_t>(layer)];
    const auto heads = static_cast<size_t>(kQueries * params.num_query_heads);
    to.params = params;
    to.q.assign(q, q + heads * static_cast<size_t>(to.shape.key_dim));
    to.out.assign(out, out + heads * static_cast<size_t>(to.shape.value_dim));
    return read_seen_rows(inner(), sequence_, layer, trace_.tokens, to);
  }

 private:
  AttentionTrace& trace_;
  SequenceId sequence_ = 0;
  bool is_last_ = false;
};

// One layer in a format: its cache, and the sums of errors of every KV head.
class LayerProbe {
 public:
  LayerProbe(const AttentionTrace::Layer& traced, int64_t tokens, ThreadPool& threads)
      : traced_(traced), tokens_(tokens), threads_(threads), shape_(traced.shape) {}

  // In the formats of `owner`, the layer whose pages it reads in `cache`.
  Status run(const CacheOptions& cache, const CacheLayer& owner) {
    CacheOptions options = cache;
    options.layers = {owner};  // with its scales and artifacts
    options.layers[0].window = shape_.window;
    options.layers[0].shares = -1;
    options.preallocate_tokens = 0;
    KVANT_ASSIGN(const std::unique_ptr<KvCache> own, KvCache::create(options, threads_));
    KVANT_ASSIGN(const SequenceId id, own->create_sequence());
    KVANT_TRY(append(*own, id, 0, tokens_ - kQueries));
    KVANT_TRY(own->end_step());
    KVANT_TRY(append(*own, id, tokens_ - kQueries, kQueries));
    std::vector<float> out(traced_.out.size());
    KVANT_TRY(own->attend(0, traced_.q.data(), traced_.params, out.data()));
    AttentionTrace::Layer seen;
    seen.shape = shape_;
    KVANT_TRY(read_seen_rows(*own, id, 0, tokens_, seen));
    compare(out, seen.k);
    return {};
  }

  const std::vector<Sums>& scores() const { return scores_; }
  const std::vector<Sums>& outputs() const { return outputs_; }

 private:
  // Begins a step.
  Status append(KvCache& cache, SequenceId id, int64_t first, int64_t count) const {
    const StepItem item{id, static_cast<int>(count)};
    KVANT_TRY(cache.begin_step({&item, 1}));
    const auto skip = static_cast<size_t>(first);
    return cache.append(0, traced_.k.data() + skip * row_floats(shape_, shape_.key_dim),
                        traced_.v.data() + skip * row_floats(shape_, shape_.value_dim));
  }

  void compare(const std::vector<float>& out, const std::vector<float>& keys) {
    const auto kv_heads = static_cast<size_t>(shape_.num_kv_heads);
    scores_.assign(kv_heads, {});
    outputs_.assign(kv_heads, {});
    threads_.run(kv_heads, [&](size_t head, int) {
      const auto group = static_cast<size_t>(traced_.params.num_query_heads) / kv_heads;
      for (int64_t query = 0; query < kQueries; ++query) {
        for (size_t h = head * group; h < (head + 1) * group; ++h) {
          outputs_[head] += output_error(out, query, h);
          if (query % kScoreStep == 0) scores_[head] += score_error(keys, query, h, head);
        }
      }
    });
  }

  size_t row_of(int64_t query, size_t head) const {
    return static_cast<size_t>(query) * static_cast<size_t>(traced_.params.num_query_heads) + head;
  }

  Sums output_error(const std::vector<float>& out, int64_t query, size_t head) const {
    const auto dim = static_cast<size_t>(shape_.value_dim);
    Sums sums;
    for (size_t i = row_of(query, head) * dim; i < (row_of(query, head) + 1) * dim; ++i) {
      const double exact = double{traced_.out[i]}, error = double{out[i]} - exact;
      sums += {error * error, exact * exact};
    }
    return sums;
  }

  Sums score_error(const std::vector<float>& keys, int64_t query, size_t head,
                   size_t kv_head) const {
    const int64_t position = tokens_ - kQueries + query;
    const int64_t first =
        shape_.window == 0 ? 0 : std::max<int64_t>(position - shape_.window + 1, 0);
    const size_t stride = row_floats(shape_, shape_.key_dim);
    const auto dim = static_cast<size_t>(shape_.key_dim);
    const size_t at = static_cast<size_t>(first) * stride + kv_head * dim;
    const float* q = traced_.q.data() + row_of(query, head) * dim;
    const auto of = [&](const std::vector<float>& k) {
      return centred_scores(q, k.data() + at, stride, position - first + 1, shape_.key_dim);
    };
    const std::vector<double> exact = of(traced_.k), seen = of(keys);
    Sums sums;
    for (size_t t = 0; t < exact.size(); ++t) {
      const double error = seen[t] - exact[t];
      sums += {error * error, exact[t] * exact[t]};
    }
    return sums;
  }

  const AttentionTrace::Layer& traced_;
  int64_t tokens_;
  ThreadPool& threads_;
  const CacheLayer& shape_;
  std::vector<Sums> scores_, outputs_;  // [KV head]
};

}  // namespace

Result<AttentionTrace> trace_attention(Model& model, ThreadPool& threads,
                                       std::span<const int32_t> tokens, int chunk) {
  AttentionTrace trace;
  trace.tokens = static_cast<int64_t>(tokens.size()) / kPageTokens * kPageTokens;
  if (trace.tokens < 2 * kQueries) {
    return invalid_argument("the text has " + std::to_string(tokens.size()) +
                            " tokens, wanted at least " + std::to_string(2 * kQueries));
  }
  CacheOptions options;
  options.layers = model.info().cache_layers;
  for (CacheLayer& layer : options.layers) layer.formats = {"bf16", "bf16"};
  for (const CacheLayer& layer : options.layers) trace.layers.emplace_back().shape = layer;
  KVANT_ASSIGN(const std::unique_ptr<KvCache> cache, KvCache::create(options, threads));
  RecordingCache recording(*cache, trace);
  KVANT_ASSIGN(const SequenceId id, cache->create_sequence());
  std::vector<float> hidden(static_cast<size_t>(std::max<int64_t>(chunk, kQueries)) *
                            static_cast<size_t>(model.info().hidden_size));
  const int64_t before = trace.tokens - kQueries;
  for (int64_t first = 0; first < trace.tokens;) {
    const int64_t count = first < before ? std::min<int64_t>(chunk, before - first) : kQueries;
    const ForwardItem item{id,
                           tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(count))};
    KVANT_TRY(model.forward(recording, {&item, 1}, hidden.data()));
    first += count;
  }
  for (AttentionTrace::Layer& layer : trace.layers) layer.shape.shares = -1;
  return trace;
}

Result<AttentionErrors> attention_errors(const AttentionTrace& trace, const CacheOptions& cache,
                                         ThreadPool& threads) {
  AttentionErrors errors;
  double score_squares = 0, output_squares = 0, count = 0;
  for (size_t l = 0; l < trace.layers.size(); ++l) {
    const AttentionTrace::Layer& traced = trace.layers[l];
    errors.layers.emplace_back();
    errors.heads.emplace_back();
    if (traced.params.num_query_heads == 0) continue;
    const int shares = cache.layers[l].shares;
    const size_t owner = shares < 0 ? l : static_cast<size_t>(shares);
    LayerProbe probe(traced, trace.tokens, threads);
    KVANT_TRY(probe.run(cache, cache.layers[owner]).with_context("layer " + std::to_string(l)));
    Sums scores, outputs;
    for (size_t head = 0; head < probe.scores().size(); ++head) {
      errors.heads[l].push_back({probe.scores()[head].ratio(), probe.outputs()[head].ratio()});
      scores += probe.scores()[head];
      outputs += probe.outputs()[head];
    }
    errors.layers[l] = {scores.ratio(), outputs.ratio()};
    score_squares += scores.ratio() * scores.ratio();
    output_squares += outputs.ratio() * outputs.ratio();
    ++count;
  }
  if (count > 0) errors.all = {std::sqrt(score_squares / count), std::sqrt(output_squares / count)};
  return errors;
}

std::vector<int> sensitive_layers(const AttentionErrors& errors) {
  std::vector<double> sorted;
  for (size_t l = 0; l < errors.layers.size(); ++l) {
    if (!errors.heads[l].empty()) sorted.push_back(errors.layers[l].outputs);
  }
  if (sorted.empty()) return {};
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[(sorted.size() - 1) / 2];
  std::vector<int> out;
  for (size_t l = 0; l < errors.layers.size(); ++l) {
    const double error = errors.layers[l].outputs;
    if (error > kRuined || error > std::max(kNoticed, kOutlier * median))
      out.push_back(static_cast<int>(l));
  }
  return out;
}

}  // namespace kvant
