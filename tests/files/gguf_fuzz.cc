// Fuzzes the GGUF reader: whatever the bytes, it answers, and what it accepts can be read to the
// last byte.
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "files/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int fd = ::memfd_create("gguf", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, data, size, 0) != static_cast<ssize_t>(size))
    return 0;
  auto file = kvant::GgufFile::open(path);
  if (!file.ok()) return 0;
  size_t sink = 0;
  for (std::string_view key : (*file)->keys()) {
    if (const auto list = (*file)->strings(key)) {
      for (std::string_view s : *list)
        sink += s.size() + (s.empty() ? 0 : static_cast<size_t>(s.back()));
    }
    if (const auto list = (*file)->numbers(key)) sink += list->size();
    if (const auto list = (*file)->integers(key)) sink += list->size();
    sink += (*file)->integer(key).has_value() + (*file)->number(key).has_value() +
            (*file)->boolean(key).has_value() + (*file)->string(key).value_or("").size();
  }
  for (const kvant::GgufTensor& tensor : (*file)->tensors()) {
    if (!tensor.data.empty()) sink += static_cast<size_t>(tensor.data.back());
  }
  volatile size_t keep = sink;
  (void)keep;
  return 0;
}
