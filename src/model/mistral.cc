// Mistral 7B: Llama with a sliding window on every layer (none from v0.2 on). Its GGUF files call
// themselves llama.
#include <array>

#include "model/families.h"
#include "model/hf_config.h"

namespace kvant {

const Family& mistral_family() {
  static constexpr std::array<std::string_view, 1> kTypes = {"mistral"};
  static constexpr Family kFamily = {"mistral", kTypes, {}, read_hf_sliding_decoder, nullptr};
  return kFamily;
}

}  // namespace kvant
