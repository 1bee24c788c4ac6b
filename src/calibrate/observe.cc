#include "calibrate/observe.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "attention/forwarding_cache.h"

namespace kvant {
namespace {

class ObservedCache final : public ForwardingCache {
 public:
  ObservedCache(KvCache& inner, SequenceId sequence, std::span<RowObserver* const> observers)
      : ForwardingCache(inner), sequence_(sequence), observers_(observers) {}

  Status begin_step(std::span<const StepItem> batch) override {
    KVANT_ASSIGN(first_position_, inner().length(sequence_));
    num_tokens_ = batch[0].num_tokens;
    return inner().begin_step(batch);
  }

  Status append(int layer, const float* k, const float* v, const float* k_pre_rope) override {
    KVANT_TRY(inner().append(layer, k, v, k_pre_rope));
    const CacheLayer& shape = shape_of(layer);
    const ObservedRows keys = rows_of(layer, shape.num_kv_heads, shape.key_dim, k);
    const ObservedRows values = rows_of(layer, shape.num_kv_heads, shape.value_dim, v);
    for (RowObserver* observer : observers_) {
      observer->see_keys(keys);
      if (shape.value_source == ValueSource::kOwnStream) observer->see_values(values);
    }
    return {};
  }

  Status attend(int layer, const float* q, const AttentionParams& params, float* out,
                PageMass* mass) override {
    const int shares = shape_of(layer).shares;
    ObservedRows queries =
        rows_of(shares >= 0 ? shares : layer, params.num_query_heads, shape_of(layer).key_dim, q);
    KVANT_TRY(check_finite(layer, queries));
    KVANT_TRY(inner().attend(layer, q, params, out, &mass_));
    if (mass != nullptr) *mass = mass_;
    queries.mass = &mass_;
    for (RowObserver* observer : observers_) observer->see_queries(queries);
    return {};
  }

 private:
  const CacheLayer& shape_of(int layer) const {
    return options().layers[static_cast<size_t>(layer)];
  }

  ObservedRows rows_of(int layer, int num_heads, int dim, const float* rows) const {
    return {.layer = layer,
            .first_position = first_position_,
            .num_tokens = num_tokens_,
            .num_heads = num_heads,
            .dim = dim,
            .rows = rows};
  }

  // Of queries; the cache itself checks K and V.
  static Status check_finite(int layer, const ObservedRows& q) {
    const size_t width = static_cast<size_t>(q.num_heads) * static_cast<size_t>(q.dim);
    const float* end = q.rows + static_cast<size_t>(q.num_tokens) * width;
    const float* bad = std::find_if(q.rows, end, [](float x) { return !std::isfinite(x); });
    if (bad == end) return {};
    const auto at = static_cast<size_t>(bad - q.rows);
    return invalid_argument("layer " + std::to_string(layer) + ": Q of position " +
                            std::to_string(q.first_position + static_cast<int64_t>(at / width)) +
                            ", head " + std::to_string(at % width / static_cast<size_t>(q.dim)) +
                            " is " + std::to_string(*bad) + ", wanted a finite number");
  }

  SequenceId sequence_;
  std::span<RowObserver* const> observers_;
  int64_t first_position_ = 0;
  int num_tokens_ = 0;
  PageMass mass_;  // of the last call of attend()
};

}  // namespace

Status observe(Model& model, ThreadPool& threads, std::span<const int32_t> tokens, int chunk,
               std::span<RowObserver* const> observers) {
  if (chunk % kPageTokens != 0) {
    return invalid_argument("chunks of " + std::to_string(chunk) +
                            " tokens, wanted a multiple of " + std::to_string(kPageTokens));
  }
  CacheOptions options;
  options.layers = model.info().cache_layers;
  for (CacheLayer& layer : options.layers) layer.formats = {"bf16", "bf16"};
  KVANT_ASSIGN(const std::unique_ptr<KvCache> cache, KvCache::create(options, threads));
  KVANT_ASSIGN(const SequenceId id, cache->create_sequence());
  ObservedCache observed(*cache, id, observers);
  std::vector<float> hidden(static_cast<size_t>(chunk) *
                            static_cast<size_t>(model.info().hidden_size));
  for (size_t first = 0; first < tokens.size();) {
    const size_t count = std::min(static_cast<size_t>(chunk), tokens.size() - first);
    const ForwardItem item{id, tokens.subspan(first, count)};
    KVANT_TRY(model.forward(observed, {&item, 1}, hidden.data()));
    first += count;
  }
  return {};
}

}  // namespace kvant
