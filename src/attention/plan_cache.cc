// plan_cache: what a cache takes, without one. It starts from the same bound layers as the cache
// and counts pages by the same read rule, so the two can't disagree.
#include "attention/kv_cache_impl.h"
#include "cache/read_rule.h"

namespace kvant {

Result<CachePlan> plan_cache_with(const CacheOptions& options, std::span<const int64_t> lengths,
                                  const FormatSource& formats) {
  KVANT_ASSIGN(const BoundLayers bound, bind_layers(options, formats, active_isa()));
  CachePlan plan;
  double elements = 0;
  for (const int64_t length : lengths) {
    if (length < 0)
      return invalid_argument("a length of " + std::to_string(length) +
                              " tokens; wanted at least 0");
    for (const GroupLayout& group : bound.groups) {
      const PageCounts pages = held_pages(group.rule, length);
      plan.sealed_bytes += static_cast<uint64_t>(pages.sealed) * group.sealed_slab_bytes();
      plan.exact_bytes += static_cast<uint64_t>(pages.exact) * group.exact_slab_bytes();
      elements += static_cast<double>(visible_tokens(group.rule, length)) *
                  static_cast<double>(group.token_elements);
    }
  }
  if (elements > 0) plan.effective_bits = static_cast<double>(plan.total_bytes()) * 8 / elements;

  double key_elements = 0, value_elements = 0;
  for (const BoundLayer& layer : bound.layers) {
    if (layer.group < 0) continue;
    const double keys = static_cast<double>(layer.format.num_kv_heads) * layer.format.key_dim;
    const double values =
        layer.format.value_from_key
            ? 0
            : static_cast<double>(layer.format.num_kv_heads) * layer.format.value_dim;
    plan.sealed_bits_key += keys * layer.key_bits;
    plan.sealed_bits_value += values * layer.value_bits;
    key_elements += keys;
    value_elements += values;
  }
  if (key_elements > 0) plan.sealed_bits_key /= key_elements;
  if (value_elements > 0) plan.sealed_bits_value /= value_elements;
  return plan;
}

}  // namespace kvant
