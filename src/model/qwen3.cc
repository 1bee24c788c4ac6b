// Qwen 3: q and k normalised per head, and a head width of its own.
#include <array>

#include "model/families.h"
#include "model/hf_config.h"
#include "model/qwen_config.h"

namespace kvant {
namespace {

constexpr std::array<std::string_view, 1> kTypes = {"qwen3"};

Status read_hf(const JsonObject& config, DecoderSpec& spec) {
  spec.query_key_norm = true;
  KVANT_ASSIGN(spec.query_key_value_bias, read_bool(config, "attention_bias", false));
  spec.attention_output_bias = spec.query_key_value_bias;
  return read_qwen_hf(config, spec);
}

Status read_gguf(const GgufFile& file, DecoderSpec& spec) {
  spec.query_key_norm = true;
  return read_qwen_gguf(file, "qwen3", spec);
}

}  // namespace

const Family& qwen3_family() {
  static constexpr Family kFamily = {"qwen3", kTypes, kTypes, read_hf, read_gguf};
  return kFamily;
}

}  // namespace kvant
