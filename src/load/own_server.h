// OwnServer: a server started as a process of its own, which ends with this one, whatever happens.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "load/http.h"

namespace kvant::load {

class OwnServer {
 public:
  // Runs `words` (a program and its arguments; "{port}" in one of them becomes a free port of
  // 127.0.0.1) and waits until GET /health answers 200. Its output is kept apart. `stop`, asked ten
  // times a second, may end the waiting: cancelled. io with the end of what the program said where
  // it ends instead, or isn't ready after `timeout_s`.
  //
  // The process isn't in the terminal's foreground group, so that Ctrl-C is ours alone to handle;
  // the kernel ends it when the thread that started it ends, even by SIGKILL.
  static Result<std::unique_ptr<OwnServer>> start(std::vector<std::string> words, double timeout_s,
                                                  const std::function<bool()>& stop);
  // SIGTERM, and SIGKILL where it isn't gone after five seconds.
  ~OwnServer();
  OwnServer(const OwnServer&) = delete;
  OwnServer& operator=(const OwnServer&) = delete;

  const ServerUrl& url() const { return url_; }
  pid_t process() const { return process_; }
  // The most memory that it had resident so far; 0 where the system doesn't tell.
  int64_t peak_bytes() const;
  // The last line that it wrote.
  std::string last_words() const;

 private:
  OwnServer() = default;
  bool has_ended();
  Status wait_until_ready(double timeout_s, const std::function<bool()>& stop);

  ServerUrl url_;
  pid_t process_ = -1;
  int output_ = -1;  // a file without a name
};

}  // namespace kvant::load
