// Mistral 7B: Llama with a sliding window on every layer (none from v0.2 on). Its GGUF files call
// themselves llama.
#include <array>

#include "model/families.h"
#include "model/hf_config.h"

namespace kvant {
namespace {

constexpr std::array<std::string_view, 1> kTypes = {"mistral"};

Status read_hf(const JsonObject& config, DecoderSpec& spec) {
  KVANT_TRY(read_hf_common(config, spec));
  KVANT_ASSIGN(const int window, read_hf_window(config));
  for (LayerSpec& layer : spec.layers) layer.window = window;
  KVANT_ASSIGN(Rope rope, read_hf_rope(config, spec, spec.layers[0].key_dim));
  spec.ropes.push_back(std::move(rope));
  return {};
}

}  // namespace

const Family& mistral_family() {
  static constexpr Family kFamily = {"mistral", kTypes, {}, read_hf, nullptr};
  return kFamily;
}

}  // namespace kvant
