// OpenTokenizer: a tokenizer alone, without its model's weights.
#pragma once

#include <memory>
#include <string>

#include "files/gguf.h"
#include "model/tokenizer.h"

namespace kvant::cli {

struct OpenTokenizer {
  std::unique_ptr<GgufFile> file;  // the tokenizer may point into it
  std::unique_ptr<Tokenizer> tokenizer;
};

// Of a GGUF file or a Hugging Face directory.
Result<OpenTokenizer> open_tokenizer(const std::string& path);

}  // namespace kvant::cli
