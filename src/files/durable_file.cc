#include "files/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

namespace kvant {
namespace {

Status cannot_write(const std::filesystem::path& path) {
  return io_error(path.string() + " can't be written: " + std::strerror(errno));
}

bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return fsync(file) == 0;
}

}  // namespace

Status sync_folder(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder.empty() ? "." : folder;
  const int file = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return cannot_write(path);
  const bool synced = fsync(file) == 0 || errno == EINVAL;  // some file systems have no such thing
  const Status status = synced ? Status() : cannot_write(path);
  close(file);
  return status;
}

Status write_durably(const std::filesystem::path& path, std::string_view bytes) {
  const std::string temporary = path.string() + ".part-" + std::to_string(getpid());
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) return cannot_write(path);
  Status status = write_all(file, bytes) ? Status() : cannot_write(path);
  if (close(file) != 0 && status.ok()) status = cannot_write(path);
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) status = cannot_write(path);
  if (!status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  return sync_folder(path.parent_path());
}

}  // namespace kvant
