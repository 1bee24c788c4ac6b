// AttentionHeads: how many heads a layer's K and V have and how wide they are.
#pragma once

#include <vector>

#include "plan/config_reader.h"

namespace kvant {

struct AttentionHeads {
  int query = 0, kv = 0;
  int k_dim = 0, v_dim = 0;
  std::vector<int> kv_by_layer;  // where they differ; 0: a layer without attention

  CacheStream full() const { return {StreamKind::kFull, kv, k_dim, v_dim, 0, 1}; }
  // `window` of 0: all tokens.
  CacheStream sliding(int64_t window) const { return windowed(StreamKind::kSliding, window); }
  CacheStream chunked(int64_t window) const { return windowed(StreamKind::kChunked, window); }

 private:
  CacheStream windowed(StreamKind kind, int64_t window) const {
    return window == 0 ? full() : CacheStream{kind, kv, k_dim, v_dim, window, 1};
  }
};

// num_attention_heads, num_key_value_heads (as many where it is absent, one with multi_query, a
// list where layers differ), head_dim (a declared one wins, else hidden size / heads), v_head_dim.
// Also fills shape.num_query_heads.
Result<AttentionHeads> read_heads(const ConfigReader& config, ModelShape& shape);

// num_attention_heads alone.
Result<int> read_query_heads(const ConfigReader& config, ModelShape& shape);

// head_dim, or hidden size / heads; shape.head_dim_from says which.
Result<int> read_head_dim(const ConfigReader& config, int query_heads);

// corrupt unless `kv` divides `query`.
Status check_kv_heads(const ConfigReader& config, std::string_view name, int kv, int query);

}  // namespace kvant
