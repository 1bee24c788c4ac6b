// The KV-cache format that a checkpoint was calibrated for, as its files declare it. What a
// declaration means here is a table of names.
#pragma once

#include <filesystem>

#include "files/json.h"
#include "kvant/format.h"
#include "kvant/status.h"

namespace kvant {

// The format that config.json (quantization_config.kv_cache_scheme, as
// compressed-tensors writes it, or kv_cache_quant_algo) asks for, or where a directory is given
// hf_quant_config.json beside it (as ModelOpt writes it); null if none or null. unsupported with
// field and value for one that isn't known, or whose scales wouldn't be given ones for all tokens.
Result<const FormatInfo*> read_declared_kv(const JsonObject& config);
Result<const FormatInfo*> read_declared_kv(const JsonObject& config,
                                           const std::filesystem::path& directory);

}  // namespace kvant
