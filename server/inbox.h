// Inbox: what happens to a request, on its way from the engine's thread to its connection's
// coroutine. What waits in it for a reader who is slower than the engine is bounded in bytes.
#pragma once

#include <boost/asio.hpp>
#include <deque>
#include <functional>
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

// Memory that a piece takes while it waits.
inline size_t bytes_of(const Piece& piece) {
  size_t bytes = sizeof piece;
  const auto add = [&bytes](const TokenLogprobs& l) {
    bytes += sizeof l + l.top.size() * sizeof(TokenLogprob);
  };
  if (const auto* event = std::get_if<GenerationEvent>(&piece.what)) {
    bytes += event->text.size();
    if (event->logprobs) add(*event->logprobs);
    for (const TokenLogprobs& l : event->prompt_logprobs) add(l);
  }
  return bytes;
}

class Inbox : public std::enable_shared_from_this<Inbox> {
 public:
  // Why nothing more is taken out.
  enum class End : uint8_t { kOpen, kOver, kClientGone, kClientSlow };

  // More than `max_bytes` behind the piece that is next close it; `on_overflow` is called then.
  Inbox(const boost::asio::any_io_executor& executor, size_t max_bytes,
        std::function<void()> on_overflow)
      : executor_(executor),
        timer_(executor),
        max_bytes_(max_bytes),
        on_overflow_(std::move(on_overflow)) {
    timer_.expires_at(std::chrono::steady_clock::time_point::max());
  }

  // From any thread; the executor outlives every request.
  void push(Piece piece) {
    boost::asio::post(executor_, [self = shared_from_this(), piece = std::move(piece)]() mutable {
      self->take(std::move(piece));
    });
  }

  // From the connection's thread. The first reason stays; what waits is dropped.
  void close(End why) {
    if (end_ != End::kOpen) return;
    end_ = why;
    pieces_.clear();
    bytes_ = 0;
    timer_.cancel();
  }
  End end() const { return end_; }
  size_t bytes() const { return bytes_; }  // that wait
  // The next piece; nothing once it is closed.
  boost::asio::awaitable<std::optional<Piece>> next() {
    while (pieces_.empty() && end_ == End::kOpen)
      co_await timer_.async_wait(boost::asio::as_tuple(boost::asio::use_awaitable));
    if (end_ != End::kOpen) co_return std::nullopt;
    std::optional<Piece> piece = std::move(pieces_.front());
    pieces_.pop_front();
    bytes_ -= bytes_of(*piece);
    co_return piece;
  }

 private:
  void take(Piece piece) {
    if (end_ != End::kOpen) return;
    const size_t bytes = bytes_of(piece);
    if (!pieces_.empty() && bytes_ + bytes > max_bytes_) {
      close(End::kClientSlow);
      on_overflow_();
      return;
    }
    bytes_ += bytes;
    pieces_.push_back(std::move(piece));
    timer_.cancel();
  }

  boost::asio::any_io_executor executor_;
  boost::asio::steady_timer timer_;
  const size_t max_bytes_;
  const std::function<void()> on_overflow_;
  std::deque<Piece> pieces_;
  size_t bytes_ = 0;
  End end_ = End::kOpen;
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
