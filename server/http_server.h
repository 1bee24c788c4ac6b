// HttpServer: the API over HTTP/1.1, on one thread of its own caller's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/api.h"
#include "server/metrics.h"
#include "server/service.h"

namespace kvant::server {

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;                    // 0: any that is free
  std::vector<std::string> api_keys = {};  // empty: none is asked for
  std::string cors_origin = {};  // of Access-Control-Allow-Origin; empty: browsers are kept out
  size_t max_body_bytes = size_t{8} << 20;
  size_t max_header_bytes = size_t{16} << 10;
  int read_seconds = 30;   // for a request to arrive whole
  int idle_seconds = 300;  // of a connection between two
  int write_seconds = 30;  // for a piece to be taken
  // What may wait for a reader who is slower than the engine; who is further behind is dropped.
  size_t max_unread_bytes = size_t{8} << 20;  // in this process, beside one piece
  int socket_bytes = 256 << 10;               // in the system's buffer of a connection
};

class HttpServer {
 public:
  // All outlive the server.
  HttpServer(const ApiModel& model, Service& service, Metrics& metrics, HttpOptions options);
  ~HttpServer();

  // Opens the port; io where it can't be had, with the reason.
  Status listen();
  uint16_t port() const;  // after listen()

  // Serves until SIGINT or SIGTERM, or stop(). Then nothing new is taken, what runs goes on to its
  // end, and a second signal ends it at once. `say` prints a line.
  void run(const std::function<void(const std::string&)>& say);
  // As a signal does; from any thread.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvant::server
