#include "plan/attention_heads.h"

#include <algorithm>

namespace kvant {
namespace {

constexpr std::string_view kKvHeads = "num_key_value_heads";

// One entry a layer, 0 for those without attention.
Status read_kv_by_layer(const ConfigReader& config, std::string_view key, AttentionHeads& heads) {
  KVANT_ASSIGN(const std::optional<std::vector<int64_t>> list, config.json().integers(key));
  if (!list || list->empty())
    return corrupt(config.where(key) + ": an empty list, wanted one number of heads a layer");
  for (const int64_t kv : *list) {
    if (kv < 0 || kv > heads.query) return out_of_range(config.where(key), kv, {0, heads.query});
    if (kv > 0) KVANT_TRY(check_kv_heads(config, key, static_cast<int>(kv), heads.query));
    heads.kv_by_layer.push_back(static_cast<int>(kv));
    heads.kv = std::max(heads.kv, static_cast<int>(kv));
  }
  return {};
}

Status read_kv_heads(const ConfigReader& config, AttentionHeads& heads) {
  for (const std::string_view key : {kKvHeads, std::string_view("num_kv_heads")}) {
    if (config.json().is_list(key)) return read_kv_by_layer(config, key, heads);
  }
  KVANT_ASSIGN(const bool multi_query,
               config.boolean("multi_query", config.defaults().multi_query));
  KVANT_ASSIGN(std::optional<int64_t> kv, config.find(kKvHeads, {1, heads.query}));
  if (multi_query && kv && *kv != 1) {
    return corrupt(config.where("multi_query") + ": true, but num_key_value_heads is " +
                   std::to_string(*kv));
  }
  if (multi_query) kv = 1;
  if (!kv) kv = config.wrapped_default(kKvHeads, config.defaults().kv_heads);
  if (!kv) {
    kv = heads.query;
    config.note("num_key_value_heads isn't given: as many as the " + std::to_string(heads.query) +
                " attention heads");
  }
  heads.kv = static_cast<int>(*kv);
  return check_kv_heads(config, kKvHeads, heads.kv, heads.query);
}

}  // namespace

Status check_kv_heads(const ConfigReader& config, std::string_view name, int kv, int query) {
  if (kv <= query && query % kv == 0) return {};
  return corrupt(config.where(name) + ": " + std::to_string(kv) + ", wanted a divisor of the " +
                 std::to_string(query) + " attention heads");
}

Result<int> read_head_dim(const ConfigReader& config, int query_heads) {
  KVANT_ASSIGN(const int declared, config.get("head_dim", {0, kDimRange.high}, 0));
  KVANT_ASSIGN(const std::optional<int64_t> hidden, config.find("hidden_size", kHiddenRange));
  if (declared > 0) {
    const bool differs = hidden && *hidden != int64_t{declared} * query_heads;
    config.set_head_dim_from(differs ? "declared, not hidden size " + std::to_string(*hidden) +
                                           " / " + std::to_string(query_heads) + " heads"
                                     : "declared");
    return declared;
  }
  const int of_class = config.defaults().head_dim;
  if (of_class > 0 && !config.json().has("head_dim") && !config.json().is_null("head_dim")) {
    config.set_head_dim_from("as the class has it");
    return of_class;
  }
  KVANT_ASSIGN(const int width, config.hidden_size());
  if (width % query_heads != 0) {
    return corrupt(config.where("hidden_size") + ": " + std::to_string(width) +
                   " isn't a multiple of num_attention_heads " + std::to_string(query_heads) +
                   ", and head_dim isn't given");
  }
  config.set_head_dim_from("hidden size " + std::to_string(width) + " / " +
                           std::to_string(query_heads) + " heads");
  return width / query_heads;
}

Result<int> read_query_heads(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(shape.num_query_heads,
               config.size("num_attention_heads", kHeadRange, config.defaults().heads));
  return shape.num_query_heads;
}

Result<AttentionHeads> read_heads(const ConfigReader& config, ModelShape& shape) {
  AttentionHeads heads;
  KVANT_ASSIGN(heads.query, read_query_heads(config, shape));
  KVANT_TRY(read_kv_heads(config, heads));
  KVANT_ASSIGN(heads.k_dim, read_head_dim(config, heads.query));
  KVANT_ASSIGN(const int v_dim, config.get("v_head_dim", {0, kDimRange.high}, 0));
  heads.v_dim = v_dim > 0 ? v_dim : heads.k_dim;
  return heads;
}

}  // namespace kvant
