// Opens a model's files and builds its decoder, whatever the layout: a Hugging Face directory or a
// GGUF file.
#pragma once

#include <filesystem>
#include <memory>

#include "files/gguf.h"
#include "model/decoder.h"

namespace kvant {

struct OpenDecoder {
  std::unique_ptr<Decoder> decoder;
  std::shared_ptr<const GgufFile> gguf;  // null for a directory
};

Result<OpenDecoder> open_decoder(const std::filesystem::path& path, const ModelOptions& options,
                                 ThreadPool& threads);

}  // namespace kvant
