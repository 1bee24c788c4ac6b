// Fingerprint: which model a file was made for.
#pragma once

#include <filesystem>
#include <string>

#include "kvant/status.h"

namespace kvant {

// Of a GGUF file, or of a directory's *.safetensors in order of name, kvant's own left out: 32
// hexadecimal digits of XXH3-128 over sizes, the first and last MiB, and 4 KiB out of every MiB
// between. It tells models apart, also fine-tuned ones, without reading all of them; it isn't proof
// against forgery.
Result<std::string> model_fingerprint(const std::filesystem::path& path);

}  // namespace kvant
