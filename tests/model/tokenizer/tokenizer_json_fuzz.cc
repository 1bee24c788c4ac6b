// Any bytes as tokenizer.json: loading ends, and what loads can encode and decode.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "model/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::filesystem::path folder = [] {
    const auto path =
        std::filesystem::temp_directory_path() / ("kvant_fuzz_" + std::to_string(getpid()));
    std::filesystem::create_directories(path);
    return path;
  }();
  std::ofstream(folder / "tokenizer.json", std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  const auto loaded = kvant::Tokenizer::load(folder);
  if (loaded.ok()) {
    const std::vector<int32_t> ids = (*loaded)->encode(
        "Hello w\xc3\xb6rld 12  \n\xf0\x9f\x98\x80 \xff<s>", kvant::SpecialTokens::kAdd);
    (void)(*loaded)->decode(ids, false);
    kvant::StreamDecoder stream(**loaded);
    for (const int32_t id : ids) (void)stream.push(id);
    (void)stream.flush();
  }
  return 0;
}
