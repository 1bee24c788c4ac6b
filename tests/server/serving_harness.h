// A server on the toy model in this process, with verbs; and a client that sends bytes as they are.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/threads.h"
#include "engine/toy_model.h"
#include "load/http.h"
#include "server/http_server.h"

namespace kvant::server {

// The toy's tokenizer, with a template for chats.
class ChatTokenizer : public toy::ByteTokenizer {
 public:
  std::string_view chat_template() const override {
    return "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
           "{% if tools %}tools: {{ tools | length }}\n{% endif %}"
           "{% if add_generation_prompt %}assistant: {% endif %}";
  }
};

// A connection that sends what it is given.
class RawClient {
 public:
  // `receive_bytes`: of the system's buffer for what it doesn't read; 0: the system's choice.
  explicit RawClient(uint16_t port, int receive_bytes = 0)
      : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_bytes > 0)
      ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_open_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~RawClient() { close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool is_open() const { return is_open_; }
  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  // Until `end` has come, or the connection ends.
  std::string read_until(std::string_view end) {
    while (heard_.find(end) == heard_.npos && read()) {
    }
    return heard_;
  }
  std::string read_all() {
    while (read()) {
    }
    return heard_;
  }
  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }
  // Ends the connection by a reset, in place of its orderly end.
  void reset() {
    const linger at_once = {.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close();
  }

 private:
  bool read() {
    char bytes[4096];
    const ssize_t n = ::recv(socket_, bytes, sizeof bytes, 0);
    if (n > 0) heard_.append(bytes, static_cast<size_t>(n));
    return n > 0;
  }

  int socket_;
  bool is_open_ = false;
  std::string heard_;
};

inline std::string post_bytes(std::string_view path, std::string_view body) {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: kvant\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}

class ServingTest : public testing::Test {
 protected:
  struct Setup {
    bool prefix_cache = true;
    uint64_t max_bytes = 0;
    ServiceOptions service = {};
    HttpOptions http = {};
  };

  void open(Setup setup) {
    model_ = std::make_unique<toy::ToyModel>();
    CacheOptions cache = toy::cache_options(*model_, {"int8_token", "int8_token"});
    cache.prefix_cache = setup.prefix_cache;
    cache.max_bytes = setup.max_bytes;
    auto made = KvCache::create(cache, threads_);
    ASSERT_TRUE(made.ok()) << made.status().message();
    cache_ = std::move(*made);
    metrics_ = std::make_unique<Metrics>("toy");
    service_ = std::make_unique<Service>(*model_, *cache_, *metrics_, setup.service);
    api_ = std::make_unique<ApiModel>(
        ApiModel{.name = "toy", .tokenizer = tokenizer_, .context = service_->context()});
    setup.http.port = 0;
    http_ = std::make_unique<HttpServer>(*api_, *service_, *metrics_, setup.http);
    ASSERT_TRUE(http_->listen().ok());
    port_ = http_->port();
    server_ = std::thread([this] { http_->run([](const std::string&) {}); });
  }
  void SetUp() override { open({}); }
  void TearDown() override { close(); }
  void close() {
    if (!server_.joinable()) return;
    http_->stop();
    server_.join();
    http_.reset();
    service_.reset();
    EXPECT_TRUE(cache_->check_invariants().ok());
  }
  void reopen(Setup setup) {
    close();
    open(std::move(setup));
  }

  load::HttpAnswer ask(std::string_view path, const std::string& body = "",
                       const std::string& key = "") const {
    const Result<load::ServerUrl> url =
        load::parse_url("http://127.0.0.1:" + std::to_string(port_));
    const Result<load::HttpAnswer> answer = load::ask({*url, key}, path, body, 60);
    EXPECT_TRUE(answer.ok()) << answer.status().message();
    return answer.ok() ? *answer : load::HttpAnswer{};
  }
  Json get(std::string_view path) const { return Json::parse(ask(path).body); }
  Json post(std::string_view path, const Json& body, int status = 200) const {
    const load::HttpAnswer answer = ask(path, body.dump());
    EXPECT_EQ(answer.status, status) << path << " " << body << "\n" << answer.body;
    return Json::parse(answer.body);
  }
  Json complete(const Json& body) const { return post("/v1/completions", body); }

  // The data of a stream's events, but the last, which says [DONE].
  std::vector<Json> stream(std::string_view path, Json body) const {
    body["stream"] = true;
    const load::HttpAnswer answer = ask(path, body.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    std::vector<Json> out;
    bool done = false;
    for (size_t at = 0; at < answer.body.size();) {
      const size_t end = answer.body.find("\n\n", at);
      const std::string event = answer.body.substr(at, end - at);
      at = end == answer.body.npos ? end : end + 2;
      EXPECT_TRUE(event.starts_with("data: ")) << event;
      EXPECT_FALSE(done) << "behind the end: " << event;
      done = event == "data: [DONE]";
      if (!done) out.push_back(Json::parse(event.substr(6)));
    }
    EXPECT_TRUE(done);
    return out;
  }

  // The value of a metric's line that begins so.
  double metric(const std::string& line) const {
    const std::string text = ask("/metrics").body;
    const size_t at = text.find("\n" + line);
    if (at == text.npos) return -1;
    const size_t end = text.find('\n', at + 1);
    const std::string whole = text.substr(at + 1, end - at - 1);
    return std::stod(whole.substr(whole.rfind(' ')));
  }
  // Waits for what another thread is about to do; never ends a test that would pass.
  template <typename Done>
  static bool eventually(Done done) {
    for (int i = 0; i < 3000; ++i) {
      if (done()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  ThreadPool threads_{1};
  ChatTokenizer tokenizer_;
  std::unique_ptr<toy::ToyModel> model_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<ApiModel> api_;
  std::unique_ptr<HttpServer> http_;
  uint16_t port_ = 0;
  std::thread server_;
};

}  // namespace kvant::server
