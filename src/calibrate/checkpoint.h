// Checkpoint: a Hugging Face directory with the scales of its cache, as compressed-tensors writes
// one and vLLM reads it.
//
// Weights and whatever else the model's directory holds are hard-linked, or copied where that can't
// be. A shard kvant-scales.safetensors has `<prefix>layers.<l>.self_attn.{q,k,v}_scale`, F32 [1],
// or [heads, 1, 1] per head; model.safetensors.index.json names it; config.json gains
// quantization_config.kv_cache_scheme. Everything is made in a folder of its own first and renamed
// at the end, config.json last, so that a failure leaves the directory as it was.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "calibrate/cache_scales.h"
#include "kvant/status.h"

namespace kvant {

inline constexpr std::string_view kScalesName = "kvant-scales.safetensors";

// True of formats that a kv_cache_scheme can name: FP8 E4M3, per tensor or per head.
bool fits_checkpoint(std::string_view format);

struct CheckpointRequest {
  std::filesystem::path model, out;
  std::string format;   // of `scales`, one that fits
  std::string sidecar;  // the bytes of kvant-cache.safetensors, which goes along
};

// What would be refused: `out` is the model's own directory, or holds a checkpoint that calibration
// didn't write; the model declares another quantization, or carries scales among its weights.
Status check_checkpoint(const CheckpointRequest& request);

Status write_checkpoint(const CheckpointRequest& request, const CacheScales& scales);

}  // namespace kvant
