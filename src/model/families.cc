#include "model/families.h"

#include <algorithm>

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
