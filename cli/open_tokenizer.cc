#include "cli/open_tokenizer.h"

#include <filesystem>

#include "cli/open_model.h"

namespace kvant::cli {

Result<OpenTokenizer> open_tokenizer(const std::string& path) {
  OpenTokenizer open;
  std::error_code error;
  KVANT_TRY(check_model_path(path, "tokenizer.json"));
  if (std::filesystem::is_directory(path, error)) {
    KVANT_ASSIGN(open.tokenizer, Tokenizer::load(std::filesystem::path(path)));
  } else {
    KVANT_ASSIGN(open.file, GgufFile::open(path));
    KVANT_ASSIGN(open.tokenizer, Tokenizer::load(*open.file));
  }
  return open;
}

}  // namespace kvant::cli
