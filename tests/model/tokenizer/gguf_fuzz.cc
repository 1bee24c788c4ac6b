// Any bytes as a GGUF file: the reader answers, what it accepts can be read to the last byte, and a
// tokenizer that loads from it can encode and decode.
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "files/gguf.h"
#include "use_tokenizer.h"

namespace kvant {
namespace {

size_t read_value(const GgufFile& file, std::string_view key) {
  size_t sink = 0;
  if (const auto list = file.strings(key)) {
    for (std::string_view s : *list)
      sink += s.size() + (s.empty() ? 0 : static_cast<size_t>(s.back()));
  }
  if (const auto list = file.numbers(key)) sink += list->size();
  if (const auto list = file.integers(key)) sink += list->size();
  return sink + file.integer(key).has_value() + file.number(key).has_value() +
         file.boolean(key).has_value() + file.string(key).value_or("").size();
}

void read_all(const GgufFile& file) {
  size_t sink = 0;
  for (std::string_view key : file.keys()) sink += read_value(file, key);
  for (const GgufTensor& tensor : file.tensors()) {
    if (file.tensor(tensor.name) != &tensor) std::abort();
    for (std::byte b : tensor.data) sink += static_cast<size_t>(b);
  }
  volatile size_t keep = sink;
  (void)keep;
}

}  // namespace
}  // namespace kvant

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int fd = ::memfd_create("gguf", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, data, size, 0) != static_cast<ssize_t>(size))
    return 0;
  const auto file = kvant::GgufFile::open(path);
  if (!file.ok()) return 0;
  kvant::read_all(**file);
  const auto tokenizer = kvant::Tokenizer::load(**file);
  if (tokenizer.ok())
    kvant::test::use_tokenizer(**tokenizer, "Hello w\xc3\xb6rld 12  \n \xff<s> aab");
  return 0;
}
