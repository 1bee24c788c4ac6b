// Bytes of the weights that lie in a model's directory; none are read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kvant/status.h"

namespace kvant {

// Of the shards that model.safetensors.index.json names, else of model.safetensors, else of all
// *.safetensors, else of all *.bin; 0 if there are none. Of safetensors the data, without headers.
// A file that is none becomes a note, and nothing is known.
Result<uint64_t> weight_bytes_of_directory(const std::filesystem::path& directory,
                                           std::vector<std::string>& notes);

}  // namespace kvant
