// The model's part of a cache's identity (CacheOptions::model_identity).
#pragma once

#include <filesystem>
#include <string>

#include "model/model.h"

namespace kvant {

// 32 hexadecimal digits over what the keys and values of a token depend on beside the cache: the
// weights (files/fingerprint.h: 2 MiB and a sample of each file, not all of it) and, of a
// directory, its config.json, for RoPE and norms stand there; how weights are stored and
// multiplied, the context that RoPE was chosen for, the code of ggml and oneDNN that this processor
// gets, their versions, and the compiler's. Two runs of one identity compute the same bits for the
// same tokens on the same dense path.
Result<std::string> model_identity(const std::filesystem::path& path, const ModelInfo& info,
                                   const ModelOptions& options);

}  // namespace kvant
