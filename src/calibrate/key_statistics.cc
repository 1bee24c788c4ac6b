#include "calibrate/key_statistics.h"

#include <Eigen/Core>

#include "attention/forwarding_cache.h"
#include "base/float_types.h"

namespace kvant {
namespace {

using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Sums = Eigen::Map<Rows>;

// sums += Σ x·xᵀ over the rows, in their order; the lower half only.
void add_products(const Rows& rows, std::vector<double>& sums) {
  Sums(sums.data(), rows.cols(), rows.cols())
      .selfadjointView<Eigen::Lower>()
      .rankUpdate(rows.transpose());
}

// Adds up what one sequence appends and asks.
class WatchingCache final : public ForwardingCache {
 public:
  WatchingCache(KvCache& inner, SequenceId sequence, ThreadPool& threads,
                std::vector<LayerMoments>& layers)
      : ForwardingCache(inner), sequence_(sequence), threads_(threads), layers_(layers) {}

  Status begin_step(std::span<const StepItem> batch) override {
    KVANT_ASSIGN(first_position_, inner().length(sequence_));
    num_tokens_ = batch[0].num_tokens;
    return inner().begin_step(batch);
  }

  Status append(int layer, const float* k, const float* v, const float* k_pre_rope) override {
    KVANT_TRY(inner().append(layer, k, v, k_pre_rope));
    LayerMoments& to = layers_[static_cast<size_t>(layer)];
    threads_.run(to.heads.size(), [&](size_t head, int) { add_keys(k, head, to); });
    return {};
  }

  Status attend(int layer, const float* q, const AttentionParams& params, float* out,
                PageMass* mass) override {
    KVANT_TRY(inner().attend(layer, q, params, out, mass));
    const int shares = inner().options().layers[static_cast<size_t>(layer)].shares;
    LayerMoments& to = layers_[static_cast<size_t>(shares >= 0 ? shares : layer)];
    const size_t group = static_cast<size_t>(params.num_query_heads) / to.heads.size();
    threads_.run(to.heads.size(), [&](size_t head, int) { add_queries(q, head, group, to); });
    return {};
  }

 private:
  // Whole pages from the second on; steps begin at a page's start.
  void add_keys(const float* k, size_t head, LayerMoments& to) const {
    const auto dim = static_cast<size_t>(to.dim);
    Rows page(kPageTokens, to.dim);
    for (int first = 0; first + kPageTokens <= num_tokens_; first += kPageTokens) {
      if (first_position_ + first < kPageTokens) continue;
      for (int t = 0; t < kPageTokens; ++t) {
        const float* row = k + (static_cast<size_t>(first + t) * to.heads.size() + head) * dim;
        for (int i = 0; i < to.dim; ++i) page(t, i) = double{bf16_to_f32(f32_to_bf16(row[i]))};
      }
      page.rowwise() -= page.colwise().mean().eval();
      add_products(page, to.heads[head].key);
      to.heads[head].num_keys += kPageTokens;
    }
  }

  void add_queries(const float* q, size_t head, size_t group, LayerMoments& to) const {
    const auto dim = static_cast<size_t>(to.dim);
    for (int first = 0; first < num_tokens_; first += kPageTokens) {
      const int count = std::min(kPageTokens, num_tokens_ - first);
      Rows rows(count * static_cast<int>(group), to.dim);
      for (Eigen::Index r = 0; r < rows.rows(); ++r) {
        const size_t token = static_cast<size_t>(first) + static_cast<size_t>(r) / group;
        const size_t query = head * group + static_cast<size_t>(r) % group;
        const float* row = q + (token * to.heads.size() * group + query) * dim;
        for (int i = 0; i < to.dim; ++i) rows(r, i) = double{row[i]};
      }
      add_products(rows, to.heads[head].query);
      to.heads[head].num_queries += rows.rows();
    }
  }

  SequenceId sequence_;
  ThreadPool& threads_;
  std::vector<LayerMoments>& layers_;
  int64_t first_position_ = 0;
  int num_tokens_ = 0;
};

}  // namespace

KeyStatistics::KeyStatistics(const ModelInfo& info, ThreadPool& threads) : threads_(threads) {
  for (const CacheLayer& layer : info.cache_layers) {
    LayerMoments& moments = layers_.emplace_back();
    if (layer.shares >= 0 || layer.num_kv_heads == 0) continue;
    moments.dim = layer.key_dim;
    moments.heads.resize(static_cast<size_t>(layer.num_kv_heads));
    const auto dim = static_cast<size_t>(layer.key_dim);
    for (HeadMoments& head : moments.heads) {
      head.query.assign(dim * dim, 0);
      head.key.assign(dim * dim, 0);
    }
  }
}

Status KeyStatistics::add(Model& model, std::span<const int32_t> tokens, int chunk) {
  if (chunk % kPageTokens != 0) {
    return invalid_argument("chunks of " + std::to_string(chunk) +
                            " tokens, wanted a multiple of " + std::to_string(kPageTokens));
  }
  CacheOptions options;
  options.layers = model.info().cache_layers;
  for (CacheLayer& layer : options.layers) layer.formats = {"bf16", "bf16"};
  KVANT_ASSIGN(const std::unique_ptr<KvCache> cache, KvCache::create(options, threads_));
  KVANT_ASSIGN(const SequenceId id, cache->create_sequence());
  WatchingCache watching(*cache, id, threads_, layers_);
  std::vector<float> hidden(static_cast<size_t>(chunk) *
                            static_cast<size_t>(model.info().hidden_size));
  for (size_t first = 0; first < tokens.size();) {
    const size_t count = std::min(static_cast<size_t>(chunk), tokens.size() - first);
    const ForwardItem item{id, tokens.subspan(first, count)};
    KVANT_TRY(model.forward(watching, {&item, 1}, hidden.data()));
    first += count;
  }
  num_tokens_ += static_cast<int64_t>(tokens.size());
  return {};
}

}  // namespace kvant
