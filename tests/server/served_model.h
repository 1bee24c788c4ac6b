// A tiny random chat model behind the whole server, on a port of its own, and a client that sends
// what it is told to, byte for byte.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <memory>
#include <string>
#include <thread>

#include "base/threads.h"
#include "cli/tiny_chat_model.h"
#include "server/http_server.h"

namespace kvant::server {

// Contexts of 256 tokens; ids 0 to 255 are bytes.
class TinyModel {
 public:
  // One dense path: oneDNN's OpenMP is nothing for ThreadSanitizer.
  TinyModel()
      : model_(Model::load(cli::tiny_chat_model(), {.invariant = true}, threads_).value()) {}

  Model& model() { return *model_; }
  CacheOptions cache_options(bool prefix_cache = true, uint64_t max_bytes = 0) const {
    CacheOptions options;
    options.layers = model_->info().cache_layers;
    for (CacheLayer& layer : options.layers) layer.formats = {"int8_token", "int8_token"};
    options.sinks = 0;
    options.prefix_cache = prefix_cache;
    options.paths_agree = true;
    options.max_bytes = max_bytes;
    return options;
  }
  std::unique_ptr<KvCache> cache(const CacheOptions& options) {
    return KvCache::create(options, threads_).value();
  }

 private:
  ThreadPool threads_{2};
  std::unique_ptr<Model> model_;
};

inline TinyModel& tiny_model() {
  static TinyModel model;
  return model;
}

struct ServerSettings {
  CacheOptions cache = tiny_model().cache_options();
  ServiceOptions service = {.engine = {.chunk = 64}};
  HttpOptions http = {};
};

class RunningServer {
 public:
  explicit RunningServer(ServerSettings settings = {})
      : cache_(tiny_model().cache(settings.cache)),
        service_(tiny_model().model(), *cache_, metrics_, settings.service),
        model_{.name = "tiny",
               .tokenizer = tiny_model().model().tokenizer(),
               .context = service_.context()},
        http_(model_, service_, metrics_, at_any_port(settings.http)) {
    EXPECT_TRUE(http_.listen().ok());
    thread_ = std::thread([this] { http_.run([](const std::string&) {}); });
  }
  ~RunningServer() {
    if (thread_.joinable()) stop();
  }
  void stop() {
    http_.stop();
    thread_.join();
  }

  uint16_t port() const { return http_.port(); }
  KvCache& cache() { return *cache_; }
  Service& service() { return service_; }
  HttpServer& http() { return http_; }

 private:
  static HttpOptions at_any_port(HttpOptions options) {
    options.port = 0;
    return options;
  }

  std::unique_ptr<KvCache> cache_;
  Metrics metrics_{"tiny"};
  Service service_;
  ApiModel model_;
  HttpServer http_;
  std::thread thread_;
};

struct HttpAnswer {
  int code = 0;  // 0: the connection ended without one
  std::string head, body;
  nlohmann::json json() const { return nlohmann::json::parse(body); }
  // Of a stream: the data of its events.
  std::vector<std::string> events() const {
    std::vector<std::string> out;
    for (size_t at = 0; (at = body.find("data: ", at)) != body.npos;) {
      const size_t end = body.find("\n\n", at);
      out.push_back(body.substr(at + 6, end - at - 6));
      at = end;
    }
    return out;
  }
};

class Client {
 public:
  explicit Client(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    const timeval patience = {.tv_sec = 60, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  ~Client() { ::close(socket_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const { return connected_; }
  void send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  // The next answer, its body whole and no longer in chunks.
  HttpAnswer receive() {
    HttpAnswer out;
    size_t end;
    while ((end = pending_.find("\r\n\r\n")) == pending_.npos) {
      if (!more()) return out;
    }
    out.head = pending_.substr(0, end + 2);
    pending_.erase(0, end + 4);
    std::from_chars(out.head.data() + 9, out.head.data() + 12, out.code);
    if (out.head.find("chunked") != out.head.npos) {
      for (size_t size = 1; size > 0;) {
        while ((end = pending_.find("\r\n")) == pending_.npos) {
          if (!more()) return {};
        }
        std::from_chars(pending_.data(), pending_.data() + end, size, 16);
        while (pending_.size() < end + 2 + size + 2) {
          if (!more()) return {};
        }
        out.body += pending_.substr(end + 2, size);
        pending_.erase(0, end + 2 + size + 2);
      }
      return out;
    }
    const size_t at = out.head.find("Content-Length: ");
    size_t length = 0;
    if (at != out.head.npos)
      std::from_chars(out.head.data() + at + 16, out.head.data() + out.head.size(), length);
    while (pending_.size() < length) {
      if (!more()) return {};
    }
    out.body = pending_.substr(0, length);
    pending_.erase(0, length);
    return out;
  }

 private:
  bool more() {
    char bytes[4096];
    const ssize_t count = ::recv(socket_, bytes, sizeof bytes, 0);
    if (count <= 0) return false;
    pending_.append(bytes, static_cast<size_t>(count));
    return true;
  }

  int socket_;
  bool connected_;
  std::string pending_;
};

inline std::string request_text(const std::string& method, const std::string& path,
                                const std::string& body = "", const std::string& headers = "") {
  return method + " " + path + " HTTP/1.1\r\nHost: here\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

inline HttpAnswer get(const RunningServer& server, const std::string& path,
                      const std::string& headers = "") {
  Client client(server.port());
  client.send(request_text("GET", path, "", headers));
  return client.receive();
}

inline HttpAnswer post(const RunningServer& server, const std::string& path,
                       const nlohmann::json& body, const std::string& headers = "") {
  Client client(server.port());
  client.send(request_text("POST", path, body.dump(), headers));
  return client.receive();
}

}  // namespace kvant::server
