// Files for tests: a fresh folder under the system's temporary one, removed with the object, and a
// file in memory for tests that open thousands.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace kvant {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvant-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  std::filesystem::path write(std::string_view name, std::string_view bytes) const {
    std::ofstream out(path_ / name, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

// One file in a folder of its own, "file" with an extension.
class TempFile {
 public:
  TempFile(std::string_view bytes, const std::string& extension)
      : path_(folder_.write("file" + extension, bytes)) {}
  std::string path() const { return path_.string(); }

 private:
  TempFolder folder_;
  std::filesystem::path path_;
};

class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("kvant-test", 0)) {
    if (fd_ < 0) std::abort();
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  // REQUIRES that nobody maps the old content any more.
  std::filesystem::path write(std::string_view bytes) const {
    if (::ftruncate(fd_, 0) != 0) std::abort();
    if (::pwrite(fd_, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
      std::abort();
    return "/proc/self/fd/" + std::to_string(fd_);
  }

 private:
  int fd_;
};

}  // namespace kvant
