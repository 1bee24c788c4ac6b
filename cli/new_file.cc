#include "cli/new_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <filesystem>

namespace kvant::cli {
namespace {

constexpr int kEnding[] = {SIGINT, SIGTERM, SIGHUP};

// The temporary file that a signal must take away, if there is one. A handler may read no more than
// this.
char pending_name[PATH_MAX];
volatile std::sig_atomic_t pending = 0;

void remove_pending(int signal) {
  if (pending != 0) unlink(pending_name);
  std::signal(signal, SIG_DFL);
  raise(signal);
}

// Signals that somebody ignores or handles stay as they are.
void watch(const std::string& name) {
  if (pending != 0 || name.size() >= sizeof pending_name) return;
  std::memcpy(pending_name, name.c_str(), name.size() + 1);
  pending = 1;
  for (int signal : kEnding) {
    struct sigaction action = {};
    if (sigaction(signal, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) continue;
    action.sa_handler = remove_pending;
    sigaction(signal, &action, nullptr);
  }
}

void forget(const std::string& name) {
  if (pending == 0 || name != pending_name) return;
  pending = 0;
  for (int signal : kEnding) {
    struct sigaction action = {};
    if (sigaction(signal, nullptr, &action) != 0 || action.sa_handler != remove_pending) continue;
    std::signal(signal, SIG_DFL);
  }
}

Status cannot_write(const std::string& path) {
  return io_error(fmt::format("{} can't be written: {}", path, std::strerror(errno)));
}

}  // namespace

// What can't be replaced one to one is written in place: pipes and devices, links to nowhere,
// somebody else's files, files in a folder that takes no new ones.
Status NewFile::open() {
  std::error_code error;
  const bool exists = std::filesystem::exists(path_, error);
  target_ = exists ? std::filesystem::canonical(path_, error).string() : path_;
  struct stat old = {};
  const bool in_place =
      exists ? stat(path_.c_str(), &old) != 0 || !S_ISREG(old.st_mode) || old.st_uid != geteuid()
             : std::filesystem::is_symlink(path_, error);
  if (!in_place) {
    temporary_ = fmt::format("{}.part-{}", target_, getpid());
    const int file = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0) {
      watch(temporary_);
      if (exists) fchmod(file, old.st_mode & 07777);
      file_.reset(fdopen(file, "wb"));
      return file_ ? Status() : cannot_write(path_);
    }
    temporary_.clear();
  }
  file_.reset(std::fopen(path_.c_str(), "wb"));
  return file_ ? Status() : cannot_write(path_);
}

void NewFile::remove_temporary() {
  if (temporary_.empty()) return;
  unlink(temporary_.c_str());
  forget(temporary_);
  temporary_.clear();
}

NewFile::~NewFile() { remove_temporary(); }

Status NewFile::write(const void* data, size_t bytes) {
  if (!file_) KVANT_TRY(open());
  return std::fwrite(data, 1, bytes, file_.get()) == bytes ? Status() : cannot_write(path_);
}

Status NewFile::finish() {
  if (!file_) KVANT_TRY(open());
  // On the disk before it has its name: a full disk is found here, a crash leaves no half of it.
  // Pipes and devices have nothing to be synced.
  bool written =
      std::fflush(file_.get()) == 0 && (fsync(fileno(file_.get())) == 0 || temporary_.empty());
  written = std::fclose(file_.release()) == 0 && written;
  if (written && !temporary_.empty()) {
    written = std::rename(temporary_.c_str(), target_.c_str()) == 0;
    if (written) {
      forget(temporary_);
      temporary_.clear();
    }
  }
  if (written) return {};
  return io_error(fmt::format("{} can't be written to its end: {}", path_, std::strerror(errno)));
}

}  // namespace kvant::cli
