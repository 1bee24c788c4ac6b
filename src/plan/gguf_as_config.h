// A GGUF file's metadata as the config.json that it was converted from would say it, so that the
// same readers read both.
#pragma once

#include <string>

#include "files/gguf.h"
#include "kvant/status.h"

namespace kvant {

// JSON text. An architecture that isn't known keeps its name as model_type; readers judge it.
// corrupt for keys of another type than the format's.
Result<std::string> gguf_as_config(const GgufFile& file);

}  // namespace kvant
