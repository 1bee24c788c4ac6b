// Inbox: what happens to a request, on its way from the engine's thread to its connection's
// coroutine.
#pragma once

#include <boost/asio.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <variant>

#include "server/service.h"

namespace kvant::server {

// What happened to one of a request's prompts.
struct Piece {
  size_t prompt;
  std::variant<GenerationEvent, RequestStats, Status> what;
};

class Inbox : public std::enable_shared_from_this<Inbox> {
 public:
  explicit Inbox(const boost::asio::any_io_executor& executor)
      : executor_(executor), timer_(executor) {
    timer_.expires_at(std::chrono::steady_clock::time_point::max());
  }

  // From any thread; the executor outlives every request.
  void push(Piece piece) {
    boost::asio::post(executor_, [self = shared_from_this(), piece = std::move(piece)]() mutable {
      self->pieces_.push_back(std::move(piece));
      self->timer_.cancel();
    });
  }

  // From the connection's thread.
  void close() {
    is_closed_ = true;
    timer_.cancel();
  }
  size_t size() const { return pieces_.size(); }
  // The next piece; nothing once it is closed.
  boost::asio::awaitable<std::optional<Piece>> next() {
    while (pieces_.empty() && !is_closed_)
      co_await timer_.async_wait(boost::asio::as_tuple(boost::asio::use_awaitable));
    if (is_closed_) co_return std::nullopt;
    std::optional<Piece> piece = std::move(pieces_.front());
    pieces_.pop_front();
    co_return piece;
  }

 private:
  boost::asio::any_io_executor executor_;
  boost::asio::steady_timer timer_;
  std::deque<Piece> pieces_;
  bool is_closed_ = false;
};

// Tells an inbox of one prompt.
class PromptListener final : public Listener {
 public:
  PromptListener(std::shared_ptr<Inbox> inbox, size_t prompt)
      : inbox_(std::move(inbox)), prompt_(prompt) {}
  void refused(const Status& status) override { inbox_->push({prompt_, status}); }
  void happened(const GenerationEvent& event) override { inbox_->push({prompt_, event}); }
  void done(const RequestStats& stats) override { inbox_->push({prompt_, stats}); }

 private:
  std::shared_ptr<Inbox> inbox_;
  size_t prompt_;
};

}  // namespace kvant::server
