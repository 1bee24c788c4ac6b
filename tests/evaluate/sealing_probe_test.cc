#include "evaluate/sealing_probe.h"

#include <gtest/gtest.h>

#include <map>

#include "engine/toy_model.h"

namespace kvant {
namespace {

class SealingProbeTest : public testing::Test {
 protected:
  // Two sequences of `tokens`, by steps of `chunk` and then one by one.
  void run(const FormatPair& formats, int64_t every, int64_t tokens = 400, int chunk = 150,
           toy::ToyOptions toy = {}) {
    toy::ToyModel model(toy);
    const auto cache = KvCache::create(toy::cache_options(model, formats), threads_).value();
    SealingProbe probe(*cache, every, [&](const SealingError& e) { reports_.push_back(e); });
    const std::vector<int32_t> ids = toy::random_tokens(static_cast<size_t>(tokens), 5);
    const SequenceId sequences[] = {probe.create_sequence().value(),
                                    probe.create_sequence().value()};
    std::vector<float> hidden(2 * static_cast<size_t>(chunk) * toy::kHidden);
    for (int64_t at = 0; at < tokens;) {
      const int64_t count = at < tokens - 100 ? std::min<int64_t>(chunk, tokens - 100 - at) : 1;
      std::vector<ForwardItem> items;
      for (const SequenceId id : sequences) {
        items.push_back(
            {id, std::span(ids).subspan(static_cast<size_t>(at), static_cast<size_t>(count))});
      }
      ASSERT_TRUE(model.forward(probe, items, hidden.data()).ok());
      hidden_ = {hidden.begin(), hidden.begin() + toy::kHidden};
      at += count;
    }
    ASSERT_TRUE(cache->check_invariants().ok());
  }
  double mean(double AttentionError::*of) const {
    double sum = 0;
    for (const SealingError& e : reports_)
      sum += e.error.*of / static_cast<double>(reports_.size());
    return sum;
  }
  ThreadPool threads_{2};
  std::vector<SealingError> reports_;
  std::vector<float> hidden_;
};

// 400 tokens are six full pages, the first of which is a sink, of two sequences in two layers.
TEST_F(SealingProbeTest, MeasuresOneSealedPageInN) {
  for (const auto& [every, pages] : std::map<int64_t, size_t>{{1, 10}, {2, 5}, {3, 4}, {100, 1}}) {
    reports_.clear();
    run({"int8_token", "int8_token"}, every);
    EXPECT_EQ(reports_.size(), 2 * pages) << every;
    size_t of_first = 0;
    for (const SealingError& e : reports_) {
      of_first += e.layer == 0 ? 1 : 0;
      EXPECT_GT(e.seconds, 0);
    }
    EXPECT_EQ(of_first, pages);
  }
}

TEST_F(SealingProbeTest, FewerBitsErrMoreAndEachSideByItself) {
  run({"bf16", "bf16"}, 1);
  ASSERT_FALSE(reports_.empty());
  EXPECT_EQ(mean(&AttentionError::scores), 0);
  EXPECT_EQ(mean(&AttentionError::outputs), 0);
  reports_.clear();
  run({"int8_token", "bf16"}, 1);
  const double int8 = mean(&AttentionError::scores);
  reports_.clear();
  run({"int4_token", "bf16"}, 1);
  EXPECT_GT(int8, 1e-4);
  EXPECT_GT(mean(&AttentionError::scores), 8 * int8) << "16 times coarser";
  EXPECT_LT(mean(&AttentionError::scores), 40 * int8);
  reports_.clear();
  run({"bf16", "int4_token"}, 1);
  EXPECT_EQ(mean(&AttentionError::scores), 0) << "the keys are exact";
  EXPECT_GT(mean(&AttentionError::outputs), 0.01);
}

// A window that lets go of pages before the step's last query sees them, and one within a page.
TEST_F(SealingProbeTest, SlidingLayersReportWhatTheQuerySees) {
  for (const int window : {8, 70, 200}) {
    reports_.clear();
    run({"int4_token", "int4_token"}, 1, 600, 256, {.window = window});
    EXPECT_FALSE(reports_.empty());
    for (const SealingError& e : reports_) EXPECT_TRUE(std::isfinite(e.error.outputs)) << window;
  }
}

TEST_F(SealingProbeTest, ChangesNoAnswer) {
  run({"int4_token", "int4_token"}, 1);
  const std::vector<float> measured = hidden_;
  reports_.clear();
  run({"int4_token", "int4_token"}, 1 << 20);
  EXPECT_EQ(measured, hidden_);
}

}  // namespace
}  // namespace kvant
