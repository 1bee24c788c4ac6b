#include "model/tensor_names.h"

#include <array>

namespace kvant {
namespace {

struct NameRow {
  std::string_view hugging_face;
  std::string_view gguf;
};

// In the order of Tensor.
constexpr std::array<NameRow, static_cast<size_t>(Tensor::kCount)> kNames = {{
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
    {"model.layers.{}.input_layernorm", "blk.{}.attn_norm"},
    {"model.layers.{}.self_attn.q_proj", "blk.{}.attn_q"},
    {"model.layers.{}.self_attn.k_proj", "blk.{}.attn_k"},
    {"model.layers.{}.self_attn.v_proj", "blk.{}.attn_v"},
    {"model.layers.{}.self_attn.qkv_proj", "blk.{}.attn_qkv"},
    {"model.layers.{}.self_attn.o_proj", "blk.{}.attn_output"},
    {"model.layers.{}.self_attn.q_norm", "blk.{}.attn_q_norm"},
    {"model.layers.{}.self_attn.k_norm", "blk.{}.attn_k_norm"},
    {"model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"},
    {"model.layers.{}.post_attention_layernorm", "blk.{}.ffn_norm"},
    {"model.layers.{}.mlp.gate_proj", "blk.{}.ffn_gate"},
    {"model.layers.{}.mlp.up_proj", "blk.{}.ffn_up"},
    {"model.layers.{}.mlp.gate_up_proj", "blk.{}.ffn_up"},
    {"model.layers.{}.mlp.down_proj", "blk.{}.ffn_down"},
    {"model.layers.{}.post_feedforward_layernorm", "blk.{}.post_ffw_norm"},
    {"model.layers.{}.mlp.gate", "blk.{}.ffn_gate_inp"},
    {"model.layers.{}.mlp.experts.{e}.gate_proj", "blk.{}.ffn_gate_exps"},
    {"model.layers.{}.mlp.experts.{e}.up_proj", "blk.{}.ffn_up_exps"},
    {"model.layers.{}.mlp.experts.{e}.down_proj", "blk.{}.ffn_down_exps"},
    {"model.layers.{}.mlp.shared_experts.gate_proj", "blk.{}.ffn_gate_shexp"},
    {"model.layers.{}.mlp.shared_experts.up_proj", "blk.{}.ffn_up_shexp"},
    {"model.layers.{}.mlp.shared_experts.down_proj", "blk.{}.ffn_down_shexp"},
    {"model.layers.{}.self_attn.q_a_proj", "blk.{}.attn_q_a"},
    {"model.layers.{}.self_attn.q_a_layernorm", "blk.{}.attn_q_a_norm"},
    {"model.layers.{}.self_attn.q_b_proj", "blk.{}.attn_q_b"},
    {"model.layers.{}.self_attn.kv_a_proj_with_mqa", "blk.{}.attn_kv_a_mqa"},
    {"model.layers.{}.self_attn.kv_a_layernorm", "blk.{}.attn_kv_a_norm"},
    {"model.layers.{}.self_attn.kv_b_proj", "blk.{}.attn_kv_b"},
    {"model.layers.{}.self_attn.k_b_proj", "blk.{}.attn_k_b"},
    {"model.layers.{}.self_attn.v_b_proj", "blk.{}.attn_v_b"},
}};

void replace(std::string& text, std::string_view what, int number) {
  const size_t at = text.find(what);
  if (at != std::string::npos) text.replace(at, what.size(), std::to_string(number));
}

}  // namespace

TensorNames TensorNames::hugging_face() {
  TensorNames out;
  for (const NameRow& row : kNames) out.patterns_.emplace_back(row.hugging_face);
  return out;
}

TensorNames TensorNames::gguf() {
  TensorNames out;
  for (const NameRow& row : kNames) out.patterns_.emplace_back(row.gguf);
  return out;
}

void TensorNames::set(Tensor tensor, std::string pattern) {
  patterns_[static_cast<size_t>(tensor)] = std::move(pattern);
}

void TensorNames::add_prefix(std::string_view prefix) {
  for (std::string& pattern : patterns_) pattern.insert(0, prefix);
}

std::string TensorNames::stem(Tensor tensor, int layer, int expert) const {
  std::string out = patterns_[static_cast<size_t>(tensor)];
  replace(out, "{}", layer);
  replace(out, "{e}", expert);
  return out;
}

std::string TensorNames::weight(Tensor tensor, int layer, int expert) const {
  return stem(tensor, layer, expert) + ".weight";
}
std::string TensorNames::bias(Tensor tensor, int layer, int expert) const {
  return stem(tensor, layer, expert) + ".bias";
}

}  // namespace kvant
