// Qwen 2 and 2.5: biases on Q, K and V.
#include <array>

#include "model/families.h"
#include "model/qwen_config.h"

namespace kvant {
namespace {

constexpr std::array<std::string_view, 1> kTypes = {"qwen2"};

Status read_hf(const JsonObject& config, DecoderSpec& spec) {
  spec.query_key_value_bias = true;
  return read_qwen_hf(config, spec);
}

Status read_gguf(const GgufFile& file, DecoderSpec& spec) {
  spec.query_key_value_bias = true;
  return read_qwen_gguf(file, "qwen2", spec);
}

}  // namespace

const Family& qwen2_family() {
  static constexpr Family kFamily = {"qwen2", kTypes, kTypes, read_hf, read_gguf};
  return kFamily;
}

}  // namespace kvant
