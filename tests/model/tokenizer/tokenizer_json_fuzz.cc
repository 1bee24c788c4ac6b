// Any bytes as tokenizer.json: loading ends, and what loads can encode and decode.
//
// Input: tokenizer.json; then, each behind a zero byte and either may be absent, the text to encode
// and tokenizer_config.json.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "use_tokenizer.h"

namespace kvant {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxText = 256;
constexpr std::string_view kText =
    "Hello w\xc3\xb6rld 12  \n\xf0\x9f\x98\x80 \xff<s> aab\xe2\x96\x81";

// One folder a process, removed at its end.
struct Folder {
  const fs::path path = fs::temp_directory_path() / ("kvant_fuzz_" + std::to_string(getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  void write(const char* name, std::string_view text) const {
    std::ofstream(path / name, std::ios::binary) << text;
  }
};

// The input up to its next zero byte, which is taken off with it.
std::string_view take_part(std::string_view& input) {
  const std::string_view part = input.substr(0, input.find('\0'));
  input.remove_prefix(std::min(part.size() + 1, input.size()));
  return part;
}

}  // namespace
}  // namespace kvant

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const kvant::Folder folder;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  folder.write("tokenizer.json", kvant::take_part(input));
  const std::string_view text = kvant::take_part(input).substr(0, kvant::kMaxText);
  folder.write("tokenizer_config.json", input.empty() ? "{}" : input);
  const auto loaded = kvant::Tokenizer::load(folder.path);
  if (loaded.ok()) kvant::test::use_tokenizer(**loaded, text.empty() ? kvant::kText : text);
  return 0;
}
