#include "load/http.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <deque>
#include <exception>
#include <memory>

namespace kvant::load {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using SteadyClock = std::chrono::steady_clock;
using Endpoints = std::vector<tcp::endpoint>;

constexpr auto kTick = std::chrono::milliseconds(100);
constexpr auto kRest = std::chrono::milliseconds(100);
// For the end of a body behind its [DONE]; a connection that doesn't come to it isn't used again.
constexpr auto kEndOfBody = std::chrono::seconds(1);
constexpr size_t kReadAhead = 1 << 14;  // bytes asked of the socket at once
constexpr size_t kLongestError = 1 << 16;
constexpr uint64_t kLongestAnswer = 64 << 20;

// Errors come back in `error`, not as exceptions.
auto quietly(error_code& error) { return asio::redirect_error(asio::use_awaitable, error); }

SteadyClock::duration as_duration(double seconds) {
  return std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(seconds));
}

Result<Endpoints> resolve(asio::io_context& io, const ServerUrl& url) {
  tcp::resolver resolver(io);
  error_code error;
  const auto found = resolver.resolve(url.host, std::to_string(url.port), error);
  if (error) return io_error(fmt::format("{} can't be resolved: {}", url.host, error.message()));
  Endpoints endpoints;
  for (const auto& entry : found) endpoints.push_back(entry.endpoint());
  return endpoints;
}

http::request<http::string_body> make_request(const Endpoint& server, std::string_view path,
                                              const std::string& body) {
  http::request<http::string_body> request;
  request.version(11);
  request.method(body.empty() ? http::verb::get : http::verb::post);
  request.target(fmt::format("{}{}", server.url.prefix, path));
  request.set(http::field::host, server.url.authority());
  request.set(http::field::user_agent, "kvant-load");
  if (!server.api_key.empty())
    request.set(http::field::authorization, fmt::format("Bearer {}", server.api_key));
  if (!body.empty()) request.set(http::field::content_type, "application/json");
  request.body() = body;
  request.prepare_payload();
  return request;
}

bool is_http_error(const error_code& error) {
  return error.category() == http::make_error_code(http::error::bad_method).category() &&
         error != http::error::end_of_stream && error != http::error::partial_message;
}

// A connection and what was read of it too far.
struct Connection {
  explicit Connection(asio::io_context& io) : stream(io) { buffer.reserve(kReadAhead); }
  beast::tcp_stream stream;
  beast::flat_buffer buffer;
};
using ConnectionPtr = std::unique_ptr<Connection>;

// Reads whatever part of a body is there next. `piece` is the caller's; the part is its start.
asio::awaitable<std::string_view> read_piece(Connection& connection,
                                             http::response_parser<http::buffer_body>& parser,
                                             std::span<char> piece, error_code& error) {
  parser.get().body().data = piece.data();
  parser.get().body().size = piece.size();
  co_await http::async_read_some(connection.stream, connection.buffer, parser, quietly(error));
  if (error == http::error::need_buffer) error = {};
  co_return std::string_view(piece.data(), piece.size() - parser.get().body().size);
}

asio::awaitable<void> ask_once(asio::io_context& io, const Endpoints& endpoints,
                               const http::request<http::string_body>& request, double timeout_s,
                               http::response_parser<http::string_body>& parser,
                               error_code& error) {
  Connection connection(io);
  connection.stream.expires_after(as_duration(timeout_s));
  co_await connection.stream.async_connect(endpoints, quietly(error));
  if (!error) co_await http::async_write(connection.stream, request, quietly(error));
  if (!error)
    co_await http::async_read(connection.stream, connection.buffer, parser, quietly(error));
}

class Driver {
 public:
  Driver(const DriveOptions& options, const Workload& workload)
      : options_(options), workload_(workload) {}

  Result<Driven> run() {
    KVANT_ASSIGN(endpoints_, resolve(io_, options_.server.url));
    if (options_.level.open_loop()) {
      start(arrivals());
    } else {
      for (int64_t i = 0; i < options_.level.concurrency; ++i) start(place());
    }
    if (options_.on_tick) asio::co_spawn(io_, tick(), [](std::exception_ptr) {});
    io_.run();
    if (broken_) std::rethrow_exception(broken_);
    Driven out;
    out.interrupted = interrupted_;
    out.worst_lag_s = worst_lag_s_;
    for (RequestRecord& record : records_) out.records.push_back(std::move(record));
    return out;
  }

 private:
  // Coroutines that have to end before the run has.
  void start(asio::awaitable<void> work) {
    ++live_;
    asio::co_spawn(io_, std::move(work), [this](std::exception_ptr error) {
      if (error) broken_ = error;
      if (--live_ == 0 || broken_) io_.stop();
    });
  }

  int64_t now_ns() const {
    if (options_.now_ns) return options_.now_ns();
    return std::chrono::nanoseconds(SteadyClock::now().time_since_epoch()).count();
  }

  bool enough() const {
    return options_.max_requests > 0 && next_ >= options_.warmup + options_.max_requests;
  }

  RequestRecord& begin(const PlannedRequest& planned) {
    RequestRecord& record = records_.emplace_back();
    record.index = next_++;
    record.counted = record.index >= options_.warmup;
    record.wanted_prompt_tokens = planned.prompt_tokens;
    record.max_tokens = planned.max_tokens;
    record.exact_tokens = options_.exact_tokens;
    if (record.index == options_.warmup) counting_since_ = SteadyClock::now();
    ++running_;
    return record;
  }

  void end(RequestRecord& record, int64_t at_ns) {
    record.ended_ns = at_ns;
    --running_;
    ++done_;
    if (record.failed()) ++failed_;
  }

  void fail(RequestRecord& record, Outcome outcome, std::string detail) {
    record.outcome = outcome;
    record.detail = std::move(detail);
    end(record, now_ns());
  }

  bool duration_is_over() const {
    return options_.duration_s > 0 && next_ > options_.warmup &&
           SteadyClock::now() - counting_since_ >= as_duration(options_.duration_s);
  }

  // One place of the closed loop.
  asio::awaitable<void> place() {
    asio::steady_timer rest(io_);
    while (!enough() && !duration_is_over()) {
      const PlannedRequest planned = workload_.request(next_);
      RequestRecord& record = begin(planned);
      co_await send(record, planned);
      if (!record.failed()) continue;
      error_code error;
      rest.expires_after(kRest);
      co_await rest.async_wait(quietly(error));
    }
  }

  asio::awaitable<void> arrive(RequestRecord& record, PlannedRequest planned) {
    co_await send(record, planned);
  }

  asio::awaitable<void> arrivals() {
    const SteadyClock::time_point begin_time = SteadyClock::now();
    asio::steady_timer timer(io_);
    double due = 0, counting_from = 0;
    while (!enough()) {
      if (next_ == options_.warmup) counting_from = due;
      due += workload_.gap(next_, options_.level.rate);
      if (next_ >= options_.warmup && options_.duration_s > 0 &&
          due - counting_from > options_.duration_s)
        break;
      PlannedRequest planned = workload_.request(next_);
      error_code error;
      timer.expires_at(begin_time + as_duration(due));
      co_await timer.async_wait(quietly(error));
      const std::chrono::duration<double> since = SteadyClock::now() - begin_time;
      worst_lag_s_ = std::max(worst_lag_s_, since.count() - due);
      RequestRecord& record = begin(planned);
      start(arrive(record, std::move(planned)));
    }
  }

  asio::awaitable<void> tick() {
    asio::steady_timer timer(io_);
    for (;;) {
      error_code error;
      timer.expires_after(kTick);
      co_await timer.async_wait(quietly(error));
      DriveProgress progress{.share = 0, .done = done_, .failed = failed_, .running = running_};
      if (options_.max_requests > 0) {
        progress.share = static_cast<double>(done_) /
                         static_cast<double>(options_.warmup + options_.max_requests);
      }
      if (options_.duration_s > 0 && next_ > options_.warmup) {
        const std::chrono::duration<double> since = SteadyClock::now() - counting_since_;
        progress.share = std::max(progress.share, since.count() / options_.duration_s);
      }
      if (options_.on_tick(progress)) continue;
      interrupted_ = true;
      io_.stop();
      co_return;
    }
  }

  // A kept connection may have been closed by the server in the meantime; then no byte of an answer
  // comes, and the request goes out on the next one.
  asio::awaitable<void> send(RequestRecord& record, const PlannedRequest& planned) {
    const http::request<http::string_body> request =
        make_request(options_.server, api_path(options_.api), planned.body);
    const SteadyClock::time_point deadline = SteadyClock::now() + as_duration(options_.timeout_s);
    record.sent_ns = now_ns();
    for (;;) {
      ConnectionPtr connection = take_idle();
      const bool kept = connection != nullptr;
      error_code error;
      if (!kept) {
        connection = std::make_unique<Connection>(io_);
        connection->stream.expires_at(deadline);
        co_await connection->stream.async_connect(endpoints_, quietly(error));
        if (error) {
          fail(record, timed_out(error) ? Outcome::kTimeout : Outcome::kConnect, error.message());
          co_return;
        }
        error_code ignored;
        connection->stream.socket().set_option(tcp::no_delay(true), ignored);
      }
      connection->stream.expires_at(deadline);
      co_await http::async_write(connection->stream, request, quietly(error));
      http::response_parser<http::buffer_body> parser;
      parser.body_limit(boost::none);
      // A server that refuses early may answer before it has read all.
      error_code read_error;
      co_await http::async_read_header(connection->stream, connection->buffer, parser,
                                       quietly(read_error));
      if (timed_out(error)) read_error = error;
      if (!read_error) {
        co_await receive(record, std::move(connection), parser, deadline);
        co_return;
      }
      if (kept && !parser.got_some() && !timed_out(read_error)) continue;
      fail_header(record, read_error);
      co_return;
    }
  }

  static bool timed_out(const error_code& error) { return error == beast::error::timeout; }

  void fail_header(RequestRecord& record, const error_code& error) {
    if (timed_out(error)) return fail(record, Outcome::kTimeout, "no answer began in time");
    if (is_http_error(error))
      return fail(record, Outcome::kMalformed, fmt::format("no HTTP: {}", error.message()));
    fail(record, Outcome::kEarlyClose, "the connection ended before an answer began");
  }

  asio::awaitable<void> receive(RequestRecord& record, ConnectionPtr connection,
                                http::response_parser<http::buffer_body>& parser,
                                SteadyClock::time_point deadline) {
    record.status = static_cast<int>(parser.get().result_int());
    AnswerStream answer(record, options_.keep_text);
    const bool streams = record.status == 200;
    std::string refusal;
    char piece[8192];
    error_code error;
    bool listening = true;
    int64_t at_ns = -1;
    while (!parser.is_done() && !error) {
      // Nothing of the time after [DONE] counts.
      if (!listening)
        connection->stream.expires_at(std::min(deadline, SteadyClock::now() + kEndOfBody));
      const std::string_view part = co_await read_piece(*connection, parser, piece, error);
      if (!listening || part.empty()) continue;
      at_ns = now_ns();
      if (!streams) {
        if (refusal.size() < kLongestError) refusal += part;
        continue;
      }
      listening = answer.feed(part, at_ns);
      if (!listening && record.failed()) break;
    }
    const bool whole = parser.is_done();
    if (at_ns < 0) at_ns = now_ns();
    settle(record, answer, refusal, whole ? error_code() : (listening ? error : error_code()),
           whole && !parser.need_eof());
    end(record, at_ns);
    if (whole && !error && parser.keep_alive()) idle_.push_back(std::move(connection));
  }

  // What became of a request whose answer began.
  void settle(RequestRecord& record, AnswerStream& answer, const std::string& refusal,
              const error_code& error, bool whole) {
    if (timed_out(error)) {
      record.outcome = Outcome::kTimeout;
      record.detail = "the answer wasn't whole in time";
    } else if (record.status != 200) {
      record.outcome = Outcome::kStatus;
      record.detail = fmt::format("{} {}", record.status, error_message(refusal));
    } else if (is_http_error(error)) {
      record.outcome = Outcome::kMalformed;
      record.detail = fmt::format("no HTTP: {}", error.message());
    } else {
      answer.finish(whole);
    }
  }

  ConnectionPtr take_idle() {
    if (idle_.empty()) return nullptr;
    ConnectionPtr connection = std::move(idle_.back());
    idle_.pop_back();
    return connection;
  }

  const DriveOptions& options_;
  const Workload& workload_;
  Endpoints endpoints_;
  std::deque<RequestRecord> records_;  // coroutines refer to them
  int64_t next_ = 0, done_ = 0, failed_ = 0, running_ = 0, live_ = 0;
  SteadyClock::time_point counting_since_;
  double worst_lag_s_ = 0;
  bool interrupted_ = false;
  std::exception_ptr broken_;
  // Behind all that coroutines refer to: its end ends those that still wait.
  asio::io_context io_{1};
  std::vector<ConnectionPtr> idle_;
};

// A connection is a descriptor: as many as the system lets this process have.
void raise_descriptor_limit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

std::string Level::text() const {
  return open_loop() ? fmt::format("{} requests/s", rate)
                     : fmt::format("concurrency {}", concurrency);
}

Result<HttpAnswer> ask(const Endpoint& server, std::string_view path, const std::string& body,
                       double timeout_s) {
  try {
    asio::io_context io(1);
    KVANT_ASSIGN(const Endpoints endpoints, resolve(io, server.url));
    const http::request<http::string_body> request = make_request(server, path, body);
    http::response_parser<http::string_body> parser;
    parser.body_limit(kLongestAnswer);
    error_code error;
    std::exception_ptr broken;
    asio::co_spawn(io, ask_once(io, endpoints, request, timeout_s, parser, error),
                   [&](std::exception_ptr e) { broken = e; });
    io.run();
    if (broken) std::rethrow_exception(broken);
    if (error) {
      return io_error(fmt::format("{} can't be reached: {}", server.url.text(), error.message()));
    }
    HttpAnswer answer;
    answer.status = static_cast<int>(parser.get().result_int());
    answer.server = std::string(parser.get()[http::field::server]);
    answer.body = std::move(parser.get().body());
    return answer;
  } catch (const std::exception& e) {
    return internal_error(fmt::format("the HTTP client: {}", e.what()));
  }
}

Result<Driven> drive(const DriveOptions& options, const Workload& workload) {
  raise_descriptor_limit();
  try {
    Driver driver(options, workload);
    return driver.run();
  } catch (const std::exception& e) {
    return internal_error(fmt::format("the HTTP client: {}", e.what()));
  }
}

}  // namespace kvant::load
