// The engine on its own thread: what is accepted, told, cancelled and drained.
#include "server/service.h"

#include <condition_variable>

#include "server/served_model.h"

namespace kvant::server {
namespace {

class Recorder final : public Listener {
 public:
  void refused(const Status& status) override {
    const std::lock_guard lock(mutex_);
    refusal_ = status;
    over_ = true;
    changed_.notify_all();
  }
  void happened(const GenerationEvent& event) override {
    const std::lock_guard lock(mutex_);
    if (event.token) tokens_.push_back(*event.token);
    changed_.notify_all();
  }
  void done(const RequestStats&) override {
    const std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  void wait_for(size_t tokens) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return over_ || tokens_.size() >= tokens; });
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return over_; });
  }
  std::vector<int32_t> tokens() {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }
  Status refusal() {
    const std::lock_guard lock(mutex_);
    return refusal_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int32_t> tokens_;
  Status refusal_;
  bool over_ = false;
};

GenerationRequest request(size_t prompt, int64_t max_tokens, int32_t first = 1) {
  GenerationRequest out;
  for (size_t i = 0; i < prompt; ++i)
    out.prompt.push_back(static_cast<int32_t>((static_cast<size_t>(first) * 31 + i * 7) % 250));
  out.max_tokens = max_tokens;
  out.ignore_end = true;
  return out;
}

class ServiceTest : public testing::Test {
 protected:
  Service& start(const ServiceOptions& options) {
    cache_ = tiny_model().cache(tiny_model().cache_options());
    service_ = std::make_unique<Service>(tiny_model().model(), *cache_, metrics_, options);
    return *service_;
  }
  void wait_until_idle() {
    while (!service_->is_idle()) std::this_thread::yield();
  }

  Metrics metrics_{"tiny"};
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Service> service_;
};

TEST_F(ServiceTest, TellsEveryTokenAndTheEnd) {
  Service& service = start({.engine = {.chunk = 64}});
  const auto recorder = std::make_shared<Recorder>();
  ASSERT_TRUE(service.submit(request(70, 12), recorder).ok());
  recorder->wait();
  EXPECT_EQ(recorder->tokens().size(), 12u);
  wait_until_idle();
}

TEST_F(ServiceTest, ARequestThatCannotBeIsRefusedToItsListener) {
  Service& service = start({.engine = {.chunk = 64}});
  const auto recorder = std::make_shared<Recorder>();
  ASSERT_TRUE(service.submit(request(300, 12), recorder).ok());
  recorder->wait();
  EXPECT_NE(recorder->refusal().message().find("300"), std::string::npos)
      << recorder->refusal().message();
  wait_until_idle();
}

TEST_F(ServiceTest, CaseF3_MoreThanTheQueueHoldsIsNotAccepted) {
  Service& service = start({.engine = {.chunk = 64}, .max_queue = 2});
  std::vector<std::shared_ptr<Recorder>> recorders;
  for (int i = 0; i < 2; ++i) {
    recorders.push_back(std::make_shared<Recorder>());
    ASSERT_TRUE(service.submit(request(10, 200, i), recorders.back()).ok());
  }
  EXPECT_EQ(service.submit(request(10, 5), recorders[0]).status().code(), Code::kExhausted);
  for (const auto& recorder : recorders) recorder->wait();
}

TEST_F(ServiceTest, ACancelledRequestGivesItsPagesBack) {
  Service& service = start({.engine = {.chunk = 64}});
  const auto recorder = std::make_shared<Recorder>();
  const auto ticket = service.submit(request(10, 240), recorder);
  recorder->wait_for(3);
  service.cancel(*ticket);
  wait_until_idle();
  EXPECT_LT(recorder->tokens().size(), 240u);
  service_.reset();
  const CacheUsage usage = cache_->usage();
  EXPECT_EQ(usage.live_bytes, usage.cached_bytes);
  EXPECT_TRUE(cache_->check_invariants().ok());
}

TEST_F(ServiceTest, AfterDrainWhatRunsEndsAndNothingBegins) {
  Service& service = start({.engine = {.chunk = 64}});
  const auto recorder = std::make_shared<Recorder>();
  ASSERT_TRUE(service.submit(request(10, 100), recorder).ok());
  service.drain();
  EXPECT_EQ(service.submit(request(10, 5), recorder).status().code(), Code::kCancelled);
  recorder->wait();
  EXPECT_EQ(recorder->tokens().size(), 100u);
}

TEST_F(ServiceTest, EndsWhileRequestsRun) {
  Service& service = start({.engine = {.chunk = 64}});
  const auto recorder = std::make_shared<Recorder>();
  ASSERT_TRUE(service.submit(request(10, 240), recorder).ok());
  recorder->wait_for(1);
  service_.reset();
}

}  // namespace
}  // namespace kvant::server
