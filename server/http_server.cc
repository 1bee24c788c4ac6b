#include "server/http_server.h"

#include <fmt/format.h>

#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <limits>
#include <set>

#include "server/inbox.h"
#include "server/logprobs.h"
#include "server/responses.h"
#include "server/routes.h"

namespace kvant::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::awaitable;
using asio::use_awaitable;
using asio::ip::tcp;
using boost::system::error_code;
using Request = http::request<http::string_body>;
using Response = http::response<http::string_body>;
using std::chrono::seconds;

constexpr size_t kFirstBytes = 4096;  // of a request
constexpr auto kToTuple = asio::as_tuple(use_awaitable);

std::string_view view(beast::string_view text) { return {text.data(), text.size()}; }

// The target without its query.
std::string_view path_of(const Request& request) {
  const std::string_view target = view(request.target());
  return target.substr(0, target.find('?'));
}

}  // namespace

struct HttpServer::Impl {
  Impl(const ApiModel& m, Service& s, Metrics& x, HttpOptions o)
      : model(m),
        service(s),
        metrics(x),
        options(std::move(o)),
        acceptor(context),
        signals(context) {}

  awaitable<void> accept();
  awaitable<void> serve(tcp::socket socket);
  awaitable<bool> answer(beast::tcp_stream& stream, const Request& request);
  awaitable<bool> generate(beast::tcp_stream& stream, const Request& request, ApiRequest api);
  awaitable<bool> stream_pieces(beast::tcp_stream& stream, const Request& request,
                                const ApiRequest& api, Inbox& inbox);
  awaitable<bool> whole_answer(beast::tcp_stream& stream, const Request& request,
                               const ApiRequest& api, Inbox& inbox);
  awaitable<bool> send(beast::tcp_stream& stream, const Request& request, const Plain& plain);
  awaitable<bool> send_error(beast::tcp_stream& stream, const Request& request,
                             const ApiError& error);
  awaitable<bool> send_chunk(beast::tcp_stream& stream, const std::string& text, Inbox& inbox);
  awaitable<void> stop_when_idle();
  void add_headers(http::fields& fields) const;
  void begin_stop(const std::function<void(const std::string&)>& say);

  const ApiModel& model;
  Service& service;
  Metrics& metrics;
  const HttpOptions options;
  const Routes routes{model, metrics};
  asio::io_context context{1};
  tcp::acceptor acceptor;
  asio::signal_set signals;
  bool is_stopping = false;
  int64_t num_answering = 0;  // connections whose answer isn't written yet
  uint16_t port = 0;
};

namespace {

// Closes the inbox when the client goes away; what it sends ahead stays unread.
awaitable<void> watch(tcp::socket& socket, std::shared_ptr<Inbox> inbox,
                      std::shared_ptr<bool> is_over) {
  const auto [error] = co_await socket.async_wait(tcp::socket::wait_read, kToTuple);
  if (*is_over) co_return;
  if (!error) {
    char byte;
    error_code peeked;
    socket.receive(asio::buffer(&byte, 1), tcp::socket::message_peek, peeked);
    if (!peeked || peeked == asio::error::would_block) co_return;  // a request sent ahead
  }
  inbox->close(Inbox::End::kClientGone);
}

std::string sse(const Json& json) { return "data: " + text_of(json) + "\n\n"; }

}  // namespace

void HttpServer::Impl::add_headers(http::fields& fields) const {
  fields.set(http::field::server, "kvant");
  if (!options.cors_origin.empty()) {
    fields.set(http::field::access_control_allow_origin, options.cors_origin);
    fields.set(http::field::access_control_allow_headers, "authorization, content-type");
    fields.set(http::field::access_control_allow_methods, "GET, POST, OPTIONS");
  }
}

awaitable<bool> HttpServer::Impl::send(beast::tcp_stream& stream, const Request& request,
                                       const Plain& plain) {
  Response response(static_cast<http::status>(plain.code), request.version());
  add_headers(response);
  response.set(http::field::content_type, plain.type);
  if (plain.code == 405) response.set(http::field::allow, allowed_method(path_of(request)));
  if (plain.code == 429 || plain.code == 503) response.set(http::field::retry_after, "1");
  response.keep_alive(request.keep_alive() && plain.code != 413 && !is_stopping);
  response.body() = plain.body;
  response.prepare_payload();
  metrics.http_response(plain.code);
  stream.expires_after(seconds(options.write_seconds));
  const auto [error, bytes] = co_await http::async_write(stream, response, kToTuple);
  if (error) metrics.client_dropped(error == beast::error::timeout ? "slow" : "gone");
  co_return !error && response.keep_alive();
}

awaitable<bool> HttpServer::Impl::send_error(beast::tcp_stream& stream, const Request& request,
                                             const ApiError& error) {
  const Plain plain = plain_error(error);
  co_return co_await send(stream, request, plain);
}

awaitable<bool> HttpServer::Impl::send_chunk(beast::tcp_stream& stream, const std::string& text,
                                             Inbox& inbox) {
  stream.expires_after(seconds(options.write_seconds));
  const auto [error, bytes] =
      co_await asio::async_write(stream, http::make_chunk(asio::buffer(text)), kToTuple);
  if (error) {
    const bool is_slow = error == beast::error::timeout;
    inbox.close(is_slow ? Inbox::End::kClientSlow : Inbox::End::kClientGone);
  }
  co_return !error;
}

awaitable<bool> HttpServer::Impl::answer(beast::tcp_stream& stream, const Request& request) {
  if (request.method() == http::verb::options && !options.cors_origin.empty()) {
    const Plain nothing = {.code = 204};
    co_return co_await send(stream, request, nothing);
  }
  const std::string path(path_of(request));
  const std::optional<ApiError> refusal =
      routes.check(view(request.method_string()), path, view(request[http::field::authorization]),
                   options.api_keys);
  if (refusal) co_return co_await send_error(stream, request, *refusal);
  if (request.method() == http::verb::get) {
    const Plain plain = routes.get(path, is_stopping);
    co_return co_await send(stream, request, plain);
  }
  const Parsed<Json> body = parse_body(request.body());
  if (body.error) co_return co_await send_error(stream, request, *body.error);
  if (path == "/tokenize" || path == "/detokenize") {
    const Plain plain = routes.tokens(path, body.value);
    co_return co_await send(stream, request, plain);
  }
  Parsed<ApiRequest> parsed = path == "/v1/completions" ? parse_completions(body.value, model)
                                                        : parse_chat(body.value, model);
  if (parsed.error) co_return co_await send_error(stream, request, *parsed.error);
  co_return co_await generate(stream, request, std::move(parsed.value));
}

awaitable<bool> HttpServer::Impl::generate(beast::tcp_stream& stream, const Request& request,
                                           ApiRequest api) {
  // A write that waits for the client ends with the socket.
  const size_t max_unread =
      api.stream ? options.max_unread_bytes : std::numeric_limits<size_t>::max();
  const auto inbox = std::make_shared<Inbox>(stream.get_executor(), max_unread, [&stream] {
    error_code ignored;
    stream.socket().close(ignored);
  });
  std::vector<Service::Ticket> tickets;
  std::optional<ApiError> error;
  for (size_t i = 0; i < api.generations.size() && !error; ++i) {
    const auto ticket =
        service.submit(api.generations[i], std::make_shared<PromptListener>(inbox, i));
    if (ticket.ok()) {
      tickets.push_back(*ticket);
    } else {
      const bool is_full = ticket.status().code() == Code::kExhausted;
      error = ApiError{.http = is_full ? 429 : 503,
                       .message = ticket.status().message(),
                       .type = is_full ? "rate_limit_error" : "server_error"};
    }
  }
  const auto is_over = std::make_shared<bool>(false);
  bool keep = false;
  if (error) {
    keep = co_await send_error(stream, request, *error);
  } else {
    asio::co_spawn(stream.get_executor(), watch(stream.socket(), inbox, is_over), asio::detached);
    stream.expires_never();
    keep = api.stream ? co_await stream_pieces(stream, request, api, *inbox)
                      : co_await whole_answer(stream, request, api, *inbox);
    *is_over = true;
    error_code ignored;
    stream.socket().cancel(ignored);  // the watch
  }
  inbox->close(Inbox::End::kOver);
  if (inbox->end() == Inbox::End::kClientGone) metrics.client_dropped("gone");
  if (inbox->end() == Inbox::End::kClientSlow) metrics.client_dropped("slow");
  for (const Service::Ticket ticket : tickets) service.cancel(ticket);  // those that haven't ended
  co_return keep;
}

// Follows a request's prompts to their ends: texts of answers, the usage, and what went wrong.
namespace {
struct Progress {
  explicit Progress(const ApiRequest& api)
      : samples(static_cast<size_t>(api.generations[0].num_samples)),
        left(api.generations.size()) {}

  // The answer that the piece belongs to, among those of all prompts.
  size_t choice_of(const Piece& piece, const GenerationEvent& event) const {
    return piece.prompt * samples + static_cast<size_t>(event.sample);
  }
  void add(const RequestStats& stats) {
    usage.prompt_tokens += stats.prompt_tokens;
    usage.cached_tokens += stats.cached_tokens;
    usage.completion_tokens += stats.new_tokens;
    --left;
  }

  size_t samples;
  size_t left;  // prompts
  Usage usage;
};
}  // namespace

awaitable<bool> HttpServer::Impl::whole_answer(beast::tcp_stream& stream, const Request& request,
                                               const ApiRequest& api, Inbox& inbox) {
  Progress progress(api);
  std::vector<Choice> choices(api.generations.size() * progress.samples);
  Logprobs logprobs(api, model.tokenizer);
  for (size_t i = 0; i < choices.size(); ++i) choices[i].text = api.echoes[i / progress.samples];
  while (progress.left > 0) {
    const std::optional<Piece> piece = co_await inbox.next();
    if (!piece) co_return false;
    if (const auto* status = std::get_if<Status>(&piece->what))
      co_return co_await send_error(stream, request, error_of(*status));
    if (const auto* stats = std::get_if<RequestStats>(&piece->what)) {
      progress.add(*stats);
      continue;
    }
    const auto& event = std::get<GenerationEvent>(piece->what);
    if (event.finish == FinishReason::kFailed)
      co_return co_await send_error(stream, request, error_of(event.status));
    const size_t index = progress.choice_of(*piece, event);
    logprobs.add(piece->prompt, index, event);
    Choice& choice = choices[index];
    choice.text += event.text;
    choice.finish = event.finish;
    if (event.logprobs) choice.logprob_sum += event.logprobs->chosen.logprob;
    if (event.token) ++choice.num_tokens;
  }
  for (size_t i = 0; i < choices.size(); ++i) choices[i].logprobs = logprobs.take(i);
  choices =
      best_choices(std::move(choices), progress.samples, static_cast<size_t>(api.num_answers));
  const Plain plain = {.body = text_of(Responses(api, model.name).whole(choices, progress.usage))};
  co_return co_await send(stream, request, plain);
}

awaitable<bool> HttpServer::Impl::stream_pieces(beast::tcp_stream& stream, const Request& request,
                                                const ApiRequest& api, Inbox& inbox) {
  // Nothing is written before the engine has taken the request: a refusal is a plain response.
  std::optional<Piece> piece = co_await inbox.next();
  if (!piece) co_return false;
  if (const auto* status = std::get_if<Status>(&piece->what))
    co_return co_await send_error(stream, request, error_of(*status));

  http::response<http::empty_body> head(http::status::ok, request.version());
  add_headers(head);
  head.set(http::field::content_type, "text/event-stream");
  head.set(http::field::cache_control, "no-cache");
  head.keep_alive(request.keep_alive() && !is_stopping);
  head.chunked(true);
  metrics.http_response(200);
  http::response_serializer<http::empty_body> serializer(head);
  stream.expires_after(seconds(options.write_seconds));
  const auto [error, bytes] = co_await http::async_write_header(stream, serializer, kToTuple);
  if (error) co_return false;

  const Responses responses(api, model.name);
  Logprobs logprobs(api, model.tokenizer);
  Progress progress(api);
  std::set<size_t> begun;
  while (true) {
    if (!piece) co_return false;
    std::string text;
    if (const auto* status = std::get_if<Status>(&piece->what)) {
      text = sse(error_json(error_of(*status)));
      progress.left = 0;
    } else if (const auto* stats = std::get_if<RequestStats>(&piece->what)) {
      progress.add(*stats);
      if (progress.left == 0 && api.include_usage)
        text = sse(responses.usage_piece(progress.usage));
    } else {
      const auto& event = std::get<GenerationEvent>(piece->what);
      const size_t choice = progress.choice_of(*piece, event);
      logprobs.add(piece->prompt, choice, event);
      Choice said{event.text, event.finish, logprobs.take(choice)};
      if (begun.insert(choice).second) {
        if (api.endpoint == Endpoint::kChat) text += sse(responses.first_piece(choice));
        said.text = api.echoes[piece->prompt] + said.text;
      }
      if (event.finish == FinishReason::kFailed) {
        text += sse(error_json(error_of(event.status)));
        progress.left = 0;
      } else if (!said.text.empty() || said.finish != FinishReason::kRunning ||
                 !said.logprobs.is_null()) {
        text += sse(responses.piece(choice, said));
      }
    }
    if (progress.left == 0) text += "data: [DONE]\n\n";
    if (!text.empty() && !co_await send_chunk(stream, text, inbox)) co_return false;
    if (progress.left == 0) break;
    piece = co_await inbox.next();
  }
  stream.expires_after(seconds(options.write_seconds));
  const auto [last_error, last_bytes] =
      co_await asio::async_write(stream, http::make_chunk_last(), kToTuple);
  co_return !last_error && head.keep_alive();
}

namespace {

// Ends a connection. What the client is still sending is read and dropped for a moment: else its
// system would tell it of a reset in place of the answer, which says why.
awaitable<void> part(beast::tcp_stream& stream) {
  error_code ignored;
  stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
  stream.expires_after(seconds(2));
  std::vector<char> dropped(size_t{64} << 10);
  bool more = true;
  while (more) {
    const auto [error, bytes] = co_await stream.async_read_some(asio::buffer(dropped), kToTuple);
    more = !error;
  }
}

}  // namespace

awaitable<void> HttpServer::Impl::serve(tcp::socket socket) {
  beast::tcp_stream stream(std::move(socket));
  beast::flat_buffer buffer;
  bool keep = true;
  while (keep && !is_stopping) {
    http::request_parser<http::string_body> parser;
    parser.body_limit(options.max_body_bytes);
    parser.header_limit(static_cast<uint32_t>(options.max_header_bytes));
    if (buffer.size() == 0) {
      stream.expires_after(seconds(options.idle_seconds));
      const auto [ended, count] =
          co_await stream.async_read_some(buffer.prepare(kFirstBytes), kToTuple);
      if (ended) break;
      buffer.commit(count);
    }
    stream.expires_after(seconds(options.read_seconds));
    const auto [error, bytes] = co_await http::async_read(stream, buffer, parser, kToTuple);
    if (error == http::error::end_of_stream) break;
    if (error == http::error::body_limit || error == http::error::header_limit) {
      const bool is_body = error == http::error::body_limit;
      const ApiError refusal = {
          .http = is_body ? 413 : 431,
          .message =
              fmt::format("the request's {} is larger than {} bytes", is_body ? "body" : "header",
                          is_body ? options.max_body_bytes : options.max_header_bytes)};
      (void)co_await send_error(stream, parser.get(), refusal);
      break;
    }
    if (error.category() == http::make_error_code(http::error::bad_method).category()) {
      const ApiError refusal = {
          .http = 400, .message = fmt::format("this is no HTTP request: {}", error.message())};
      (void)co_await send_error(stream, parser.get(), refusal);
      break;
    }
    if (error) break;
    // Nothing is meant to throw but for want of memory; whatever does costs its own request only.
    std::optional<ApiError> thrown;
    ++num_answering;
    try {
      keep = co_await answer(stream, parser.get());
    } catch (const std::exception& e) {
      thrown = ApiError{.http = 500, .message = e.what(), .type = "server_error"};
    }
    if (thrown) {
      (void)co_await send_error(stream, parser.get(), *thrown);
      keep = false;
    }
    --num_answering;
  }
  co_await part(stream);
}

awaitable<void> HttpServer::Impl::accept() {
  while (acceptor.is_open()) {
    auto [error, socket] = co_await acceptor.async_accept(kToTuple);
    if (error == asio::error::operation_aborted) break;
    if (error) {  // too many open files: those that are served go on
      asio::steady_timer pause(context, std::chrono::milliseconds(50));
      co_await pause.async_wait(kToTuple);
      continue;
    }
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    socket.set_option(tcp::socket::send_buffer_size(options.socket_bytes), ignored);
    asio::co_spawn(context, serve(std::move(socket)), asio::detached);
  }
}

awaitable<void> HttpServer::Impl::stop_when_idle() {
  asio::steady_timer pause(context);
  while (!service.is_idle() || num_answering > 0) {
    pause.expires_after(std::chrono::milliseconds(20));
    co_await pause.async_wait(kToTuple);
  }
  context.stop();
}

void HttpServer::Impl::begin_stop(const std::function<void(const std::string&)>& say) {
  if (is_stopping) return context.stop();
  is_stopping = true;
  say("stopping: what runs goes on to its end, a second signal ends it at once");
  service.drain();
  error_code ignored;
  acceptor.close(ignored);
  asio::co_spawn(context, stop_when_idle(), asio::detached);
}

HttpServer::HttpServer(const ApiModel& model, Service& service, Metrics& metrics,
                       HttpOptions options)
    : impl_(std::make_unique<Impl>(model, service, metrics, std::move(options))) {}
HttpServer::~HttpServer() = default;

Status HttpServer::listen() {
  Impl& impl = *impl_;
  const std::string where = fmt::format("{}:{}", impl.options.host, impl.options.port);
  error_code error;
  const auto address = asio::ip::make_address(impl.options.host, error);
  if (error)
    return invalid_argument(fmt::format("--host is '{}', wanted an IP address", impl.options.host));
  const tcp::endpoint endpoint(address, impl.options.port);
  impl.acceptor.open(endpoint.protocol(), error);
  if (!error) impl.acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) impl.acceptor.bind(endpoint, error);
  if (!error) impl.acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) return io_error(fmt::format("{} can't be listened on: {}", where, error.message()));
  impl.port = impl.acceptor.local_endpoint().port();
  return {};
}

uint16_t HttpServer::port() const { return impl_->port; }

void HttpServer::run(const std::function<void(const std::string&)>& say) {
  Impl& impl = *impl_;
  impl.signals.add(SIGINT);
  impl.signals.add(SIGTERM);
  std::function<void(const error_code&, int)> on_signal = [&](const error_code& error, int) {
    if (error) return;
    impl.begin_stop(say);
    impl.signals.async_wait(on_signal);
  };
  impl.signals.async_wait(on_signal);
  asio::co_spawn(impl.context, impl.accept(), asio::detached);
  impl.context.run();
}

void HttpServer::stop() {
  asio::post(impl_->context, [this] { impl_->begin_stop([](const std::string&) {}); });
}

}  // namespace kvant::server
