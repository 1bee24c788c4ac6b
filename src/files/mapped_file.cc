#include "files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace kvant {
namespace {

Status system_error(const std::filesystem::path& path, const char* what) {
  const int error = errno;
  std::string message = path.string() + ": " + what + " failed: " + std::strerror(error);
  return error == ENOENT ? not_found(std::move(message)) : io_error(std::move(message));
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // Opening a pipe would wait for whoever writes into it.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return system_error(path, "open");
  struct stat info;
  if (::fstat(fd, &info) != 0) {
    Status status = system_error(path, "fstat");
    ::close(fd);
    return status;
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return invalid_argument(path.string() + ": not a regular file");
  }
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) {  // mmap refuses an empty range
    ::close(fd);
    return MappedFile(path, {});
  }
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  Status status = data == MAP_FAILED ? system_error(path, "mmap") : Status();
  ::close(fd);
  if (!status.ok()) return status;
  return MappedFile(path, {static_cast<const std::byte*>(data), size});
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::forget() const {
  if (!bytes_.empty())
    (void)::madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), MADV_DONTNEED);
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kShown = 64;
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "'";
  for (char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out + (text.size() > kShown ? "…'" : "'");
}

}  // namespace kvant
