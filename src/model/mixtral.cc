// Mixtral: Mistral whose feed-forward layers are experts. Its GGUF files call themselves llama,
// with an expert count.
#include <array>

#include "model/experts_config.h"
#include "model/families.h"
#include "model/hf_config.h"

namespace kvant {
namespace {

constexpr std::array<std::string_view, 1> kTypes = {"mixtral"};

Status read_hf(const JsonObject& config, DecoderSpec& spec) {
  KVANT_TRY(read_hf_sliding_decoder(config, /*absent=*/0, spec));
  for (LayerSpec& layer : spec.layers) layer.feed_forward = FeedForwardKind::kExperts;
  KVANT_ASSIGN(spec.experts.num_experts, read_int(config, "num_local_experts", 1, kMaxExperts));
  KVANT_ASSIGN(spec.experts.top_k,
               read_int(config, "num_experts_per_tok", 1, spec.experts.num_experts));
  spec.experts.expert_size = spec.layers[0].ffn_size;
  spec.names.set(Tensor::kRouter, "model.layers.{}.block_sparse_moe.gate");
  spec.names.set(Tensor::kExpertGate, "model.layers.{}.block_sparse_moe.experts.{e}.w1");
  spec.names.set(Tensor::kExpertDown, "model.layers.{}.block_sparse_moe.experts.{e}.w2");
  spec.names.set(Tensor::kExpertUp, "model.layers.{}.block_sparse_moe.experts.{e}.w3");
  return {};
}

}  // namespace

const Family& mixtral_family() {
  static constexpr Family kFamily = {"mixtral", kTypes, {}, read_hf, nullptr};
  return kFamily;
}

}  // namespace kvant
