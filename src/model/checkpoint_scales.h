// CheckpointScales: scales of the cache that a Hugging Face checkpoint carries beside its weights,
// by the names that compressed-tensors, ModelOpt and vLLM give them.
//
// Behind `layers.<l>.` and one of self_attn, attn, attention, mixer, a name ends in k_scale,
// v_scale, q_scale, kv_scale (K and V), k_cache.scale, v_cache.scale, or k_proj.output_scale and
// v_proj.output_scale; what stands before `layers.` and between doesn't matter. A tensor of one
// number is for all heads; [n] or [n, 1, 1] is one for each. The rules where some are missing: a
// side takes its own scale, else kv_scale, else 1.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "files/safetensors.h"
#include "kvant/format.h"
#include "kvant/status.h"

namespace kvant {

// One tensor; `values` as they are in the file, NaN and zero too, narrowed to float32.
struct CheckpointScale {
  enum class Of : uint8_t { kQuery, kKey, kValue, kKeyAndValue };
  std::string tensor;
  std::string file;
  int layer = 0;
  Of of = Of::kKey;
  std::vector<float> values;
};

// True of the names above, and of the zero points and probability scales beside them, which
// symmetric formats have no use for: what the loader of weights passes over.
bool belongs_to_cache(std::string_view tensor);

// In order of layer; corrupt with file and tensor for one that isn't numbers, or two for the same.
Result<std::vector<CheckpointScale>> read_checkpoint_scales(const Safetensors& files);

// A layer's, once they are to be used; empty sides have none of their own.
struct LayerCheckpointScales {
  std::vector<float> key, value;  // one for all heads, or in every layer one for each
  bool key_is_assumed = false, value_is_assumed = false;  // missing, and taken as 1
};

struct UsableScales {
  std::vector<LayerCheckpointScales> layers;  // empty: the checkpoint has none
  const FormatInfo* format = nullptr;         // that the scales are for; null: none
  std::vector<std::string> notes;  // what was missing and is taken as 1, one sentence each
};

// corrupt for a scale that can't be used or a layer that isn't there; unsupported where the number
// of scales is neither one nor the layer's KV heads. `declared`: what the checkpoint declares its
// cache to be, null for nothing; sides without a scale are only filled in where FP8 is declared.
Result<UsableScales> usable_scales(std::span<const CheckpointScale> found,
                                   std::span<const int> num_kv_heads, const FormatInfo* declared);

}  // namespace kvant
