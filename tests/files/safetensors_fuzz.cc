// Any bytes as a safetensors file, or as the index of a directory of shards where they start with a
// brace: the reader answers, and what it accepts can be read to the last byte.
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "files/safetensors.h"

namespace kvant {
namespace {

namespace fs = std::filesystem;

void read_all(const Safetensors& file) {
  size_t sink = 0;
  for (const SafetensorsTensor& tensor : file.tensors()) {
    if (file.tensor(tensor.name) != &tensor) std::abort();
    for (std::byte b : tensor.data) sink += static_cast<size_t>(b);
  }
  volatile size_t keep = sink;
  (void)keep;
}

// A folder with two shards, "a" and "b", that hold the tensors x and y; removed at the process's
// end.
struct Shards {
  const fs::path path = fs::temp_directory_path() / ("kvant_shards_" + std::to_string(getpid()));
  Shards() {
    fs::create_directories(path);
    write("a", shard("x"));
    write("b", shard("y"));
  }
  ~Shards() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  void write(const char* name, std::string_view text) const {
    std::ofstream(path / name, std::ios::binary) << text;
  }
  static std::string shard(const std::string& tensor) {
    const std::string header =
        R"({")" + tensor + R"(":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
    std::string out(8, '\0');
    out[0] = static_cast<char>(header.size());
    return out + header + "ok";
  }
};

void read_index(std::string_view index) {
  static const Shards shards;
  shards.write("model.safetensors.index.json", index);
  const auto directory = Safetensors::open_directory(shards.path);
  if (directory.ok()) read_all(**directory);
}

}  // namespace
}  // namespace kvant

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0 && data[0] == '{') {
    kvant::read_index({reinterpret_cast<const char*>(data), size});
    return 0;
  }
  static const int fd = ::memfd_create("safetensors", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, data, size, 0) != static_cast<ssize_t>(size))
    return 0;
  const auto file = kvant::Safetensors::open_file(path);
  if (file.ok()) kvant::read_all(**file);
  return 0;
}
