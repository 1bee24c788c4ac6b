// DecoderSpec: everything that tells one decoder-only model from another, as data. A family file
// fills it from config.json or GGUF metadata; decoder.cc builds and runs what it says. A family
// that only differs in numbers and names needs no code beside its two readers; how to add one is in
// families.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kvant/format.h"
#include "kvant/status.h"
#include "model/checkpoint_scales.h"
#include "model/elementwise.h"
#include "model/rope.h"
#include "model/tensor_names.h"

namespace kvant {

enum class AttentionKind : uint8_t {
  kGrouped,  // queries in groups share a K and V head (grouped_attention.cc)
  kLatent,   // multi-head latent attention
};
enum class FeedForwardKind : uint8_t {
  kGated,    // down(act(gate(x)) · up(x)) (gated_mlp.cc)
  kExperts,  // a router and experts
};

struct LayerSpec {
  AttentionKind attention = AttentionKind::kGrouped;
  FeedForwardKind feed_forward = FeedForwardKind::kGated;
  int num_kv_heads = 0;
  int key_dim = 0;
  int value_dim = 0;
  int window = 0;  // tokens that a query sees, itself included; 0: all
  int rope = 0;    // index into DecoderSpec::ropes; −1: this layer doesn't rotate
  int ffn_size = 0;
};

// Mixture of experts; num_experts = 0: none.
struct ExpertsSpec {
  int num_experts = 0;
  int top_k = 0;
  int expert_size = 0;          // hidden width of one expert
  bool normalize_top_k = true;  // the chosen weights are divided by their sum
  float scale = 1.0f;           // of the chosen weights
  int shared_size = 0;          // width of the experts that always run; 0: none
  bool stacked = false;         // one tensor holds all experts (GGUF)
  int num_groups = 1;           // experts compete inside the top_groups groups with the best ones
  int top_groups = 1;
};

// Multi-head latent attention (DeepSeek-V2).
struct LatentSpec {
  int query_rank = 0;  // 0: queries are projected directly
  int kv_rank = 0;
  int rope_dim = 0;
  int nope_dim = 0;
  int value_dim = 0;  // per head, after decompression
};

struct DecoderSpec {
  std::string architecture;                 // the family's name
  std::string name;                         // the model's own, for people
  const FormatInfo* declared_kv = nullptr;  // as ModelTraits's
  UsableScales cache_scales;                // of a checkpoint that carries some
  int hidden_size = 0;
  int num_query_heads = 0;
  int vocab_size = 0;
  int64_t max_positions = 0;
  int64_t context =
      0;  // set before the family reads: tokens that sequences are meant to reach; 0: not known
  float norm_epsilon = 1e-6f;
  float norm_offset =
      0;  // added to every norm weight: 1 where files store w − 1 (Gemma's safetensors)
  float embedding_scale = 1;
  float attention_scale = 0;  // of q·k; 0: 1/sqrt(key_dim)
  float attention_soft_cap = 0;
  float logit_soft_cap = 0;
  Activation activation = Activation::kSilu;
  bool query_key_norm = false;  // q and k are normalised per head before RoPE
  bool post_norms =
      false;  // the outputs of attention and feed-forward are normalised before they are added
  bool query_key_value_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  bool fused_query_key_value = false;  // one tensor Tensor::kQueryKeyValue, rows q then k then v
  bool fused_gate_up = false;          // one tensor Tensor::kGateUp, rows gate then up
  bool tied_embeddings = false;        // the output matrix is the embedding
  std::vector<Rope> ropes;
  std::vector<LayerSpec> layers;
  ExpertsSpec experts;
  LatentSpec latent;
  TensorNames names;
  std::vector<std::string>
      ignored_prefixes;  // tensors of the file that the decoder has no use for (vision, …)
};

// Of a number that a file gives at `where`: corrupt unless it is positive and finite.
inline Status check_positive(const std::string& where, double value) {
  if (value > 0 && std::isfinite(value)) return {};
  return corrupt(where + ": " + std::to_string(value) + ", wanted a positive number");
}

}  // namespace kvant
