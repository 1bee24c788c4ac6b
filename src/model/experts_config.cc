#include "model/experts_config.h"

namespace kvant {

Status read_gguf_experts(const GgufKeys& keys, DecoderSpec& spec) {
  ExpertsSpec& experts = spec.experts;
  KVANT_ASSIGN(experts.num_experts, keys.integer("expert_count", 0, kMaxExperts, 0));
  if (experts.num_experts == 0) return {};
  KVANT_ASSIGN(experts.top_k, keys.integer("expert_used_count", 1, experts.num_experts));
  KVANT_ASSIGN(experts.expert_size,
               keys.integer("expert_feed_forward_length", 1, 1 << 20, spec.layers[0].ffn_size));
  KVANT_ASSIGN(const int shared, keys.integer("expert_shared_count", 0, kMaxExperts, 0));
  experts.shared_size = shared * experts.expert_size;
  KVANT_ASSIGN(const double scale, keys.number("expert_weights_scale", 1));
  experts.scale = scale == 0 ? 1.0f : static_cast<float>(scale);  // converters write 0 for "none"
  KVANT_ASSIGN(experts.num_groups, keys.integer("expert_group_count", 1, experts.num_experts, 1));
  KVANT_ASSIGN(experts.top_groups,
               keys.integer("expert_group_used_count", 1, experts.num_groups, experts.num_groups));
  if (experts.num_experts % experts.num_groups != 0) {
    return corrupt(keys.where("expert_group_count") + ": " + std::to_string(experts.num_groups) +
                   ", wanted a divisor of the " + std::to_string(experts.num_experts) + " experts");
  }
  experts.stacked = true;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (keys.file().tensor(spec.names.weight(Tensor::kRouter, static_cast<int>(i))) != nullptr) {
      spec.layers[i].feed_forward = FeedForwardKind::kExperts;
    }
  }
  return {};
}

}  // namespace kvant
