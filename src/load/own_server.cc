#include "load/own_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

namespace kvant::load {
namespace {

using SteadyClock = std::chrono::steady_clock;
constexpr auto kPoll = std::chrono::milliseconds(100);
constexpr auto kGrace = std::chrono::seconds(5);

Status failed(std::string_view what) {
  return io_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

// A port that nobody listens on now.
Result<uint16_t> free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return failed("no socket to find a free port with");
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  const bool bound = bind(socket, any, size) == 0 && getsockname(socket, any, &size) == 0;
  const Status status = bound ? Status() : failed("no free port");
  close(socket);
  if (!status.ok()) return status;
  return ntohs(address.sin_port);
}

// In the child: nothing here may allocate.
[[noreturn]] void become(char* const* words, int output, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it ended before the line above
  setpgid(0, 0);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(nothing, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  execvp(words[0], words);
  constexpr char kMessage[] = "the program can't be run\n";
  [[maybe_unused]] const ssize_t written = write(output, kMessage, sizeof kMessage - 1);
  _exit(127);
}

}  // namespace

Result<std::unique_ptr<OwnServer>> OwnServer::start(std::vector<std::string> words,
                                                    double timeout_s,
                                                    const std::function<bool()>& stop) {
  std::unique_ptr<OwnServer> server(new OwnServer);
  KVANT_ASSIGN(const uint16_t port, free_port());
  server->url_ = {.host = "127.0.0.1", .port = port, .prefix = ""};
  for (std::string& word : words) {
    if (const size_t at = word.find("{port}"); at != word.npos)
      word.replace(at, 6, std::to_string(port));
  }
  server->output_ = memfd_create("kvant-server-output", MFD_CLOEXEC);
  if (server->output_ < 0) return failed("no memory for the server's output");
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const pid_t parent = getpid();
  server->process_ = fork();
  if (server->process_ == 0) become(pointers.data(), server->output_, parent);
  if (server->process_ < 0) return failed("the server can't be started");
  KVANT_TRY(server->wait_until_ready(timeout_s, stop));
  return server;
}

bool OwnServer::has_ended() {
  if (process_ < 0) return true;
  if (waitpid(process_, nullptr, WNOHANG) == 0) return false;
  process_ = -1;
  return true;
}

Status OwnServer::wait_until_ready(double timeout_s, const std::function<bool()>& stop) {
  const auto deadline = SteadyClock::now() + std::chrono::duration<double>(timeout_s);
  for (;;) {
    if (has_ended()) return io_error(fmt::format("the server ended: {}", last_words()));
    if (stop && stop()) return cancelled("interrupted while the server was starting");
    const Result<HttpAnswer> health = ask({.url = url_, .api_key = ""}, "/health", "", 1);
    if (health.ok() && health->status == 200) return {};
    if (SteadyClock::now() > deadline) {
      return io_error(fmt::format("the server wasn't ready after {} s; it last said: {}", timeout_s,
                                  last_words()));
    }
    std::this_thread::sleep_for(kPoll);
  }
}

OwnServer::~OwnServer() {
  if (!has_ended()) {
    kill(process_, SIGTERM);
    const auto deadline = SteadyClock::now() + kGrace;
    while (!has_ended() && SteadyClock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (process_ >= 0) {
      kill(process_, SIGKILL);
      waitpid(process_, nullptr, 0);
    }
  }
  if (output_ >= 0) close(output_);
}

int64_t OwnServer::peak_bytes() const {
  std::ifstream status(fmt::format("/proc/{}/status", process_));
  constexpr std::string_view kName = "VmHWM:";
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(kName)) return std::atoll(line.c_str() + kName.size()) * 1024;
  }
  return 0;
}

std::string OwnServer::last_words() const {
  char buffer[4096];
  struct stat facts = {};
  fstat(output_, &facts);
  const off_t from = std::max<off_t>(0, facts.st_size - static_cast<off_t>(sizeof buffer));
  const ssize_t n = pread(output_, buffer, sizeof buffer, from);
  std::string text(buffer, n > 0 ? static_cast<size_t>(n) : 0);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  const size_t line = text.rfind('\n');
  if (line != text.npos) text.erase(0, line + 1);
  return text.empty() ? "nothing was said" : text;
}

}  // namespace kvant::load
