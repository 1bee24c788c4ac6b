// The registry of model families: which names in files belong to which reader.
//
// To add a family: write `<family>.cc` with one function `<family>_family()`, add its line to
// families.def, and a tiny model with Transformers' logits to tests/data/models
// (tools/make_tiny_models.py). Its two readers start from read_hf_common() and read_gguf_common(),
// then set what differs: `spec.ropes` (always), norms, biases, windows, scales, names
// (`spec.names.set`). A family whose GGUF files carry another's name has no reader for them. Parts
// that no existing layer computes are a new AttentionLayer or FeedForwardLayer (layers.h) behind a
// kind of decoder_spec.h.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "files/gguf.h"
#include "files/json.h"
#include "model/decoder_spec.h"

namespace kvant {

struct Family {
  std::string_view name;
  std::span<const std::string_view> hf_types;    // values of config.json's model_type
  std::span<const std::string_view> gguf_types;  // values of general.architecture
  Status (*read_hf)(const JsonObject& config, DecoderSpec& spec);
  Status (*read_gguf)(const GgufFile& file, DecoderSpec& spec);
};

#define KVANT_FAMILY(name) const Family& name##_family();
#include "model/families.def"
#undef KVANT_FAMILY

std::vector<const Family*> all_families();

// The spec of a model directory's config.json, or of a GGUF file. unsupported with the type and the
// known families. `context` is ModelOptions::context.
Result<DecoderSpec> read_spec(const JsonObject& config, int64_t context);
Result<DecoderSpec> read_spec(const GgufFile& file, int64_t context);

}  // namespace kvant
