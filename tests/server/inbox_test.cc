// What waits for a slow reader, in bytes.
#include "server/inbox.h"

#include <gtest/gtest.h>

namespace kvant::server {
namespace {

Piece text_of(size_t bytes) {
  GenerationEvent event;
  event.text.assign(bytes, 'a');
  return {.prompt = 0, .what = std::move(event)};
}

class InboxTest : public testing::Test {
 protected:
  std::shared_ptr<Inbox> inbox(size_t max_bytes) {
    return std::make_shared<Inbox>(context_.get_executor(), max_bytes, [this] { ++overflows_; });
  }
  // Pieces come from other threads and are taken by the connection's.
  void push(Inbox& inbox, Piece piece) {
    inbox.push(std::move(piece));
    context_.restart();
    context_.run();
  }
  std::optional<Piece> next(Inbox& inbox) {
    std::optional<Piece> out;
    boost::asio::co_spawn(
        context_, [&]() -> boost::asio::awaitable<void> { out = co_await inbox.next(); },
        boost::asio::detached);
    context_.restart();
    context_.run();
    return out;
  }

  boost::asio::io_context context_{1};
  int overflows_ = 0;
};

TEST_F(InboxTest, NeverHoldsMoreThanItMay) {
  constexpr size_t kMost = 10'000;
  const auto box = inbox(kMost);
  int pushed = 0;
  for (; overflows_ == 0 && pushed < 1000; ++pushed) {
    push(*box, text_of(100));
    ASSERT_LE(box->bytes(), kMost);
  }
  EXPECT_EQ(overflows_, 1);
  EXPECT_LT(pushed, 100);
  EXPECT_EQ(box->end(), Inbox::End::kClientSlow);
  EXPECT_EQ(box->bytes(), 0u);  // what waited is gone at once
  push(*box, text_of(100));
  EXPECT_EQ(box->bytes(), 0u);
  EXPECT_EQ(overflows_, 1);
  EXPECT_FALSE(next(*box).has_value());
}

TEST_F(InboxTest, WhoKeepsUpReadsAnyNumberOfBytes) {
  const auto box = inbox(1000);
  for (int i = 0; i < 100; ++i) {
    push(*box, text_of(500));
    EXPECT_TRUE(next(*box).has_value());
    EXPECT_EQ(box->bytes(), 0u);
  }
  EXPECT_EQ(box->end(), Inbox::End::kOpen);
}

// The prompt's log-probabilities come in one piece, however long the prompt.
TEST_F(InboxTest, OnePieceIsTakenWhateverItsSize) {
  const auto box = inbox(1000);
  Piece large = text_of(0);
  auto& event = std::get<GenerationEvent>(large.what);
  event.prompt_logprobs.assign(50, {.chosen = {}, .top = std::vector<TokenLogprob>(20)});
  push(*box, std::move(large));
  EXPECT_GT(box->bytes(), 50 * 20 * sizeof(TokenLogprob));
  EXPECT_EQ(box->end(), Inbox::End::kOpen);
  push(*box, text_of(1));
  EXPECT_EQ(box->end(), Inbox::End::kClientSlow);
}

TEST_F(InboxTest, TheFirstReasonStays) {
  const auto box = inbox(1000);
  box->close(Inbox::End::kClientGone);
  box->close(Inbox::End::kOver);
  EXPECT_EQ(box->end(), Inbox::End::kClientGone);
}

}  // namespace
}  // namespace kvant::server
