// Mistral 7B: Llama with a sliding window on every layer (none from v0.2 on). Its GGUF files call
// themselves llama.
#include <array>

#include "model/families.h"
#include "model/hf_config.h"

namespace kvant {
namespace {

constexpr int kDefaultWindow = 4096;  // of Transformers' MistralConfig; null means none

Status read_hf(const JsonObject& config, DecoderSpec& spec) {
  return read_hf_sliding_decoder(config, kDefaultWindow, spec);
}

}  // namespace

const Family& mistral_family() {
  static constexpr std::array<std::string_view, 1> kTypes = {"mistral"};
  static constexpr Family kFamily = {"mistral", kTypes, {}, read_hf, nullptr};
  return kFamily;
}

}  // namespace kvant
