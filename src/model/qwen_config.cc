#include "model/qwen_config.h"

#include "model/gguf_config.h"
#include "model/hf_config.h"

namespace kvant {
namespace {

// Of Transformers' Qwen2Config and Qwen3Config.
constexpr int kDefaultMaxWindowLayers = 28;
constexpr int kDefaultWindow = 4096;

}  // namespace

Status read_qwen_hf(const JsonObject& config, DecoderSpec& spec) {
  KVANT_TRY(read_hf_common(config, spec));
  KVANT_ASSIGN(const bool slides, read_bool(config, "use_sliding_window", false));
  KVANT_ASSIGN(int window, read_hf_window(config, kDefaultWindow));
  if (!slides) window = 0;
  KVANT_ASSIGN(const int first,
               read_int(config, "max_window_layers", 0, 1 << 20, kDefaultMaxWindowLayers));
  KVANT_TRY(assign_windows(
      config, window, [first](int layer) { return layer >= first; }, spec));
  KVANT_ASSIGN(Rope rope, read_hf_rope(config, spec, spec.layers[0].key_dim));
  spec.ropes.push_back(std::move(rope));
  return {};
}

Status read_qwen_gguf(const GgufFile& file, std::string_view architecture, DecoderSpec& spec) {
  const GgufKeys keys(file, std::string(architecture));
  KVANT_TRY(read_gguf_common(keys, spec));
  KVANT_ASSIGN(Rope rope, read_gguf_rope(keys, spec, RopePairing::kHalves));
  spec.ropes.push_back(std::move(rope));
  return {};
}

}  // namespace kvant
