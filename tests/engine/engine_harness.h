// An engine on the toy model, with verbs.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/threads.h"
#include "engine/engine.h"
#include "engine/toy_model.h"

namespace kvant {

struct Finished {
  std::vector<int32_t> tokens;
  std::string text;
  FinishReason finish = FinishReason::kRunning;
  Status status;
};

class EngineTest : public testing::Test {
 protected:
  void open(const FormatPair& formats, EngineOptions options = {}, toy::ToyOptions toy = {}) {
    model_ = std::make_unique<toy::ToyModel>(toy);
    open_cache(toy::cache_options(*model_, formats), options);
  }
  // The same on a cache of other options.
  void open_cache(const CacheOptions& cache_options, EngineOptions options = {}) {
    engine_.reset();
    auto cache = KvCache::create(cache_options, threads_);
    ASSERT_TRUE(cache.ok()) << cache.status().message();
    cache_ = std::move(*cache);
    engine_ = std::make_unique<Engine>(*model_, *cache_, options);
  }

  RequestId submit(GenerationRequest request) {
    Result<RequestId> id = engine_->submit(std::move(request));
    EXPECT_TRUE(id.ok()) << id.status().message();
    return *id;
  }

  // Steps until nothing is left to do. What becomes of the requests' answers with this number.
  std::map<RequestId, Finished> drain(int sample = 0) {
    std::map<RequestId, Finished> out;
    while (!engine_->idle()) take(engine_->step(), out, sample);
    return out;
  }

  static void take(const std::vector<GenerationEvent>& events, std::map<RequestId, Finished>& out,
                   int sample = 0) {
    for (const GenerationEvent& e : events) {
      if (e.sample != sample) continue;
      Finished& f = out[e.request];
      if (e.token) f.tokens.push_back(*e.token);
      f.text += e.text;
      f.finish = e.finish;
      f.status = e.status;
    }
  }

  Finished alone(GenerationRequest request) {
    const RequestId id = submit(std::move(request));
    return drain().at(id);
  }

  ThreadPool threads_{2};
  std::unique_ptr<toy::ToyModel> model_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Engine> engine_;
};

inline GenerationRequest request_of(size_t prompt_tokens, uint64_t seed, int64_t max_tokens = 12) {
  GenerationRequest r;
  r.prompt = toy::random_tokens(prompt_tokens, seed);
  r.sampling = {.temperature = 0.8, .seed = seed};
  r.max_tokens = max_tokens;
  r.ignore_end = true;
  return r;
}

}  // namespace kvant
