// Qwen 3 mixture of experts: Qwen 3 whose feed-forward layers are experts, except where the config
// says otherwise.
#include <algorithm>
#include <array>

#include "model/experts_config.h"
#include "model/families.h"
#include "model/gguf_config.h"
#include "model/hf_config.h"
#include "model/qwen_config.h"

namespace kvant {
namespace {

constexpr std::array<std::string_view, 1> kHfTypes = {"qwen3_moe"};
constexpr std::array<std::string_view, 1> kGgufTypes = {"qwen3moe"};

Status read_hf(const JsonObject& config, DecoderSpec& spec) {
  spec.query_key_norm = true;
  KVANT_ASSIGN(spec.query_key_value_bias, read_bool(config, "attention_bias", false));
  spec.attention_output_bias = spec.query_key_value_bias;
  KVANT_TRY(read_qwen_hf(config, spec));
  KVANT_ASSIGN(spec.experts.num_experts, read_int(config, "num_experts", 1, kMaxExperts));
  KVANT_ASSIGN(spec.experts.top_k,
               read_int(config, "num_experts_per_tok", 1, spec.experts.num_experts));
  KVANT_ASSIGN(spec.experts.expert_size, read_int(config, "moe_intermediate_size", 1, 1 << 20));
  KVANT_ASSIGN(spec.experts.normalize_top_k, read_bool(config, "norm_topk_prob", false));
  KVANT_ASSIGN(const int step, read_int(config, "decoder_sparse_step", 1, 1 << 20, 1));
  KVANT_ASSIGN(const auto dense_layers, config.integers("mlp_only_layers"));
  const std::vector<int64_t> dense = dense_layers.value_or(std::vector<int64_t>());
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const bool is_dense =
        std::find(dense.begin(), dense.end(), static_cast<int64_t>(i)) != dense.end();
    if (!is_dense && (i + 1) % static_cast<size_t>(step) == 0) {
      spec.layers[i].feed_forward = FeedForwardKind::kExperts;
    }
  }
  return {};
}

Status read_gguf(const GgufFile& file, DecoderSpec& spec) {
  spec.query_key_norm = true;
  KVANT_TRY(read_qwen_gguf(file, "qwen3moe", spec));
  return read_gguf_experts(GgufKeys(file, "qwen3moe"), spec);
}

}  // namespace

const Family& qwen3_moe_family() {
  static constexpr Family kFamily = {"qwen3_moe", kHfTypes, kGgufTypes, read_hf, read_gguf};
  return kFamily;
}

}  // namespace kvant
