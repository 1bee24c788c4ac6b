#include "model/families.h"

#include <algorithm>
#include <array>

#include "files/mapped_file.h"

namespace kvant {

namespace {

using Types = std::span<const std::string_view> Family::*;

const Family* find_family(std::string_view type, Types types) {
  for (const Family* family : all_families()) {
    const std::span<const std::string_view> known = family->*types;
    if (std::find(known.begin(), known.end(), type) != known.end()) return family;
  }
  return nullptr;
}

Status unknown(const std::string& where, std::string_view type, Types types) {
  std::string known;
  for (const Family* family : all_families()) {
    for (std::string_view name : family->*types)
      known += (known.empty() ? "" : ", ") + std::string(name);
  }
  return unsupported(where + ": model type " + in_quotes(type) + " isn't known; known are " +
                     known);
}

// Fields that say that layers cache something else than a K and a V row per head. A reader that
// doesn't know one would serve the model on a wrong cache.
struct CacheField {
  std::string_view name;
  std::string_view meaning;
  bool of_latents;  // families with latent attention read it
};
constexpr std::array<CacheField, 6> kCacheFields = {
    {{"kv_lora_rank", "latent attention", true},
     {"q_lora_rank", "latent attention", true},
     {"qk_rope_head_dim", "latent attention", true},
     {"num_kv_shared_layers", "layers that read another layer's cache", false},
     {"shared_kv_layers", "layers that read another layer's cache", false},
     {"index_head_dim", "a cache of index keys beside the latent", false}}};

Status check_cache_fields(const JsonObject& config, const DecoderSpec& spec) {
  const bool latent = spec.latent.kv_rank > 0;
  for (const CacheField& field : kCacheFields) {
    if (latent && field.of_latents) continue;
    KVANT_ASSIGN(const std::optional<int64_t> value, config.integer(field.name));
    if (value.value_or(0) == 0) continue;
    return unsupported(config.where(field.name) + ": " + std::to_string(*value) + " means " +
                       std::string(field.meaning) + ", which the family " + spec.architecture +
                       " doesn't have here");
  }
  return {};
}

}  // namespace

std::vector<const Family*> all_families() {
  return {
#define KVANT_FAMILY(name) &name##_family(),
#include "model/families.def"
#undef KVANT_FAMILY
  };
}

Result<DecoderSpec> read_spec(const JsonObject& config, int64_t context) {
  KVANT_ASSIGN(const std::optional<std::string> type, config.string("model_type"));
  if (!type) return corrupt(config.where("model_type") + " is missing");
  const Family* family = find_family(*type, &Family::hf_types);
  if (family == nullptr) return unknown(config.where("model_type"), *type, &Family::hf_types);
  DecoderSpec spec;
  spec.architecture = family->name;
  spec.context = context;
  KVANT_TRY(family->read_hf(config, spec));
  KVANT_TRY(check_cache_fields(config, spec));
  return spec;
}

Result<DecoderSpec> read_spec(const GgufFile& file, int64_t context) {
  const std::string where = file.path().string() + ": general.architecture";
  const std::optional<std::string_view> type = file.string("general.architecture");
  if (!type) return corrupt(where + " is missing");
  const Family* family = find_family(*type, &Family::gguf_types);
  if (family == nullptr) return unknown(where, *type, &Family::gguf_types);
  DecoderSpec spec;
  spec.architecture = family->name;
  spec.context = context;
  KVANT_TRY(family->read_gguf(file, spec));
  return spec;
}

}  // namespace kvant
