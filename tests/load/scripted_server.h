// A server in this process that does what a test says, byte by byte: one thread per connection, and
// one script for all of them.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <functional>
#include <list>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "load/http.h"

namespace kvant::load {

struct HeardRequest {
  std::string path, body, authorization;
  nlohmann::json json() const { return nlohmann::json::parse(body); }
};

// Nanoseconds that a script sets and the client reads.
class ManualClock {
 public:
  std::function<int64_t()> reader() {
    return [this] {
      const int64_t now = now_ns_;
      ++readings_;
      return now;
    };
  }
  void set_ms(double ms) { now_ns_ = static_cast<int64_t>(ms * 1e6); }
  int64_t readings() const { return readings_; }
  void wait_for_reading_after(int64_t before) const {
    while (readings_ == before && !abandoned_) std::this_thread::yield();
  }
  void abandon() { abandoned_ = true; }  // nobody reads any more

 private:
  std::atomic<int64_t> now_ns_{0}, readings_{0};
  std::atomic<bool> abandoned_{false};
};

// One connection, as its script sees it.
class Peer {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  explicit Peer(Socket socket) : socket_(std::move(socket)) {
    boost::system::error_code ignored;
    socket_.set_option(boost::asio::ip::tcp::no_delay(true), ignored);
  }

  // False at the connection's end.
  bool read(HeardRequest& request) {
    namespace http = boost::beast::http;
    http::request_parser<http::string_body> parser;
    parser.body_limit(boost::none);
    boost::system::error_code error;
    http::read(socket_, buffer_, parser, error);
    if (error) return false;
    request.path = std::string(parser.get().target());
    request.body = parser.get().body();
    request.authorization = std::string(parser.get()[http::field::authorization]);
    return true;
  }
  void send(const std::string& bytes) {
    boost::system::error_code ignored;
    boost::asio::write(socket_, boost::asio::buffer(bytes), ignored);
  }
  void reset() {  // the client sees "connection reset by peer"
    boost::system::error_code ignored;
    socket_.set_option(boost::asio::socket_base::linger(true, 0), ignored);
    close();
  }
  void close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    boost::system::error_code ignored;
    socket_.close(ignored);
  }
  // Ends the connection, from any thread.
  void shut_down() {
    const std::lock_guard<std::mutex> lock(mutex_);
    boost::system::error_code ignored;
    socket_.shutdown(boost::asio::socket_base::shutdown_both, ignored);
  }
  // Blocks until the client has gone.
  void wait_for_end() {
    HeardRequest request;
    while (read(request)) {
    }
  }

 private:
  Socket socket_;
  std::mutex mutex_;  // of its end: reads and writes are the script's thread's alone
  boost::beast::flat_buffer buffer_;
};

class ScriptedServer {
 public:
  // Called for each request; false closes the connection behind it.
  using Script = std::function<bool(Peer&, const HeardRequest&)>;

  explicit ScriptedServer(Script script)
      : script_(std::move(script)),
        acceptor_(io_, {boost::asio::ip::address_v4::loopback(), 0}),
        accepting_([this] { accept(); }) {}

  ~ScriptedServer() {
    boost::system::error_code ignored;
    ending_ = true;
    // A connection of our own wakes the acceptor.
    boost::asio::ip::tcp::socket waker(io_);
    waker.connect(acceptor_.local_endpoint(), ignored);
    accepting_.join();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (Peer& peer : peers_) peer.shut_down();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  uint16_t port() const { return acceptor_.local_endpoint().port(); }
  Endpoint endpoint() const {
    return {.url = {.host = "127.0.0.1", .port = port(), .prefix = ""}, .api_key = ""};
  }
  std::string url() const { return endpoint().url.text(); }

  std::vector<HeardRequest> heard() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return heard_;
  }
  int connections() const { return connections_; }

 private:
  void accept() {
    for (;;) {
      boost::system::error_code error;
      boost::asio::ip::tcp::socket socket(io_);
      acceptor_.accept(socket, error);
      if (ending_ || error) return;
      ++connections_;
      const std::lock_guard<std::mutex> lock(mutex_);
      Peer& peer = peers_.emplace_back(std::move(socket));
      threads_.emplace_back([this, &peer] { serve(peer); });
    }
  }

  void serve(Peer& peer) {
    HeardRequest request;
    bool more = true;
    while (more && peer.read(request)) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        heard_.push_back(request);
      }
      more = script_(peer, request);
    }
    peer.shut_down();
  }

  Script script_;
  boost::asio::io_context io_;
  boost::asio::ip::tcp::acceptor acceptor_;
  std::atomic<bool> ending_{false};
  std::atomic<int> connections_{0};
  mutable std::mutex mutex_;
  std::list<Peer> peers_;
  std::vector<std::thread> threads_;
  std::vector<HeardRequest> heard_;
  std::thread accepting_;
};

// --- What scripts send ---

inline std::string chunk(const std::string& bytes) {
  char size[32];
  std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  return size + bytes + "\r\n";
}
inline const std::string kLastChunk = "0\r\n\r\n";
inline const std::string kStreamHeader =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

inline std::string event(const nlohmann::json& json) { return "data: " + json.dump() + "\n\n"; }
inline std::string text_event(const std::string& text) {
  return event({{"choices", {{{"index", 0}, {"text", text}, {"finish_reason", nullptr}}}}});
}
inline std::string chat_event(const nlohmann::json& delta) {
  return event({{"choices", {{{"index", 0}, {"delta", delta}, {"finish_reason", nullptr}}}}});
}
inline std::string finish_event(const std::string& reason = "length") {
  return event({{"choices", {{{"index", 0}, {"text", ""}, {"finish_reason", reason}}}}});
}
inline std::string usage_event(int prompt, int completion, int cached = 0) {
  return event({{"choices", nlohmann::json::array()},
                {"usage",
                 {{"prompt_tokens", prompt},
                  {"completion_tokens", completion},
                  {"prompt_tokens_details", {{"cached_tokens", cached}}}}}});
}
inline const std::string kDone = "data: [DONE]\n\n";

inline std::string json_answer(const nlohmann::json& json, const std::string& status = "200 OK") {
  const std::string body = json.dump();
  return "HTTP/1.1 " + status +
         "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

// A whole answer of `tokens` one-letter tokens.
inline std::string whole_stream(int prompt, int tokens) {
  std::string body;
  for (int i = 0; i < tokens; ++i) body += chunk(text_event("a"));
  return kStreamHeader + body + chunk(finish_event()) + chunk(usage_event(prompt, tokens)) +
         chunk(kDone) + kLastChunk;
}

}  // namespace kvant::load
