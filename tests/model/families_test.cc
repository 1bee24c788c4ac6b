// Every tiny model under tests/data/models against Transformers, as a directory and as GGUF: a
// directory added there is a test added here.
//
// With weights and cache in float32 the two differ by rounding only. The bound is 1e-4 of the
// spread of a prompt's kept logits; what is measured is printed and kept in docs/numerics.md.
#include "model/families.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <map>

#include "model_harness.h"
#include "tiny_models.h"

namespace kvant {
namespace {

constexpr double kTolerance = 1e-4;

// Largest difference of the kept rows from the golden ones, over the spread of these.
double deviation(const Golden& golden, const std::vector<float>& logits) {
  const auto [low, high] = std::minmax_element(golden.logits.begin(), golden.logits.end());
  const size_t vocabulary = golden.logits.size() / golden.rows.size();
  double worst = 0;
  for (size_t r = 0; r < golden.rows.size(); ++r) {
    for (size_t i = 0; i < vocabulary; ++i) {
      const double seen = logits[golden.rows[r] * vocabulary + i];
      const double difference = std::fabs(seen - golden.logits[r * vocabulary + i]);
      if (!(difference <= worst)) worst = difference;  // a NaN stays
    }
  }
  return worst / (static_cast<double>(*high) - *low);
}

class TinyModelTest : public ::testing::TestWithParam<std::tuple<TinyModel, bool>> {
 protected:
  const TinyModel& tiny() const { return std::get<0>(GetParam()); }
  bool invariant() const { return std::get<1>(GetParam()); }

  // Goldens that one loaded model can run together: RoPE may depend on the context.
  std::map<int64_t, std::vector<Golden>> by_context() const {
    std::map<int64_t, std::vector<Golden>> out;
    for (const Golden& golden : tiny().goldens) out[golden.context].push_back(golden);
    return out;
  }

  TestModel open(int64_t context) const {
    return TestModel(tiny().path,
                     {.weights = WeightType::kF32, .invariant = invariant(), .context = context},
                     /*num_threads=*/1);
  }

  void expect_agreement_in_pieces_of(size_t chunk) {
    double worst = 0;
    for (const auto& [context, goldens] : by_context()) {
      TestModel model = open(context);
      ASSERT_TRUE(model.ok());
      auto cache = model.cache("f32");
      for (const Golden& golden : goldens) {
        const std::vector<float> hidden =
            model.feed(*cache, cache->create_sequence().value(), golden.ids, chunk);
        const double d = deviation(golden, model.logits(hidden.data(), golden.ids.size()));
        EXPECT_LE(d, kTolerance) << golden.name;
        worst = std::max(worst, d);
      }
    }
    std::printf("deviation %-24s %-9s pieces of %-4zu %.1e\n", tiny().name.c_str(),
                invariant() ? "invariant" : "default", chunk, worst);
  }
};

TEST_P(TinyModelTest, LogitsOfAPromptInOnePieceAgree) { expect_agreement_in_pieces_of(4096); }
TEST_P(TinyModelTest, LogitsOfPiecesOf64Agree) { expect_agreement_in_pieces_of(64); }
TEST_P(TinyModelTest, LogitsOfPiecesOf128Agree) { expect_agreement_in_pieces_of(128); }
TEST_P(TinyModelTest, LogitsOfTokenByTokenAgree) { expect_agreement_in_pieces_of(1); }

TEST_P(TinyModelTest, LogitsOfABatchOfMixedLengthsAgree) {
  for (const auto& [context, goldens] : by_context()) {
    TestModel model = open(context);
    ASSERT_TRUE(model.ok());
    auto cache = model.cache("f32");
    std::vector<ForwardItem> batch;
    size_t rows = 0;
    for (const Golden& golden : goldens) {
      batch.push_back({cache->create_sequence().value(), golden.ids});
      rows += golden.ids.size();
    }
    std::vector<float> hidden(rows * model.hidden_size());
    const Status status = model.decoder().forward(*cache, batch, hidden.data());
    ASSERT_TRUE(status.ok()) << status.message();
    const float* next = hidden.data();
    for (const Golden& golden : goldens) {
      EXPECT_LE(deviation(golden, model.logits(next, golden.ids.size())), kTolerance)
          << golden.name;
      next += golden.ids.size() * model.hidden_size();
    }
  }
}

TEST_P(TinyModelTest, GreedyTokensAreTheSame) {
  for (const auto& [context, goldens] : by_context()) {
    TestModel model = open(context);
    ASSERT_TRUE(model.ok());
    for (const Golden& golden : goldens) {
      EXPECT_EQ(model.greedy(golden.ids, golden.greedy.size(), "f32"), golden.greedy)
          << golden.name;
    }
  }
}

// Hidden states as bits, in the weights' own types and on a quantized cache where layers allow it.
TEST_P(TinyModelTest, BitsDependOnNeitherPiecesNorBatchNorThreads) {
  const Golden& golden = tiny().goldens.back();
  const ModelOptions options{.invariant = invariant(), .context = golden.context};
  TestModel one(tiny().path, options, 1);
  TestModel two(tiny().path, options, 2);
  ASSERT_TRUE(one.ok() && two.ok());
  const bool quantizable = one.decoder().info().layer_shapes[0].quantizable;
  const std::string format = quantizable ? "int8_token" : "bf16";
  const auto run = [&](TestModel& model, size_t chunk) {
    auto cache = model.cache(format);
    return model.feed(*cache, cache->create_sequence().value(), golden.ids, chunk);
  };
  const std::vector<float> want = run(one, 0);
  std::vector<size_t> chunks = {64, 128};
  if (invariant())
    chunks = kSlowBuild ? std::vector<size_t>{7, 64} : std::vector<size_t>{1, 7, 64, 128};
  for (size_t chunk : chunks) {
    EXPECT_TRUE(run(one, chunk) == want) << "pieces of " << chunk;
  }
  EXPECT_TRUE(run(two, 0) == want) << "two threads";

  auto cache = two.cache(format);
  std::vector<ForwardItem> batch;
  size_t rows = 0;
  for (const Golden& other : tiny().goldens) {
    batch.push_back({cache->create_sequence().value(), other.ids});
    rows += other.ids.size();
  }
  std::vector<float> hidden(rows * two.hidden_size());
  ASSERT_TRUE(two.decoder().forward(*cache, batch, hidden.data()).ok());
  EXPECT_TRUE(std::equal(want.begin(), want.end(), hidden.end() - static_cast<long>(want.size())))
      << "last of a batch";
}

INSTANTIATE_TEST_SUITE_P(All, TinyModelTest,
                         ::testing::Combine(::testing::ValuesIn(tiny_models()), ::testing::Bool()),
                         [](const auto& info) {
                           return std::get<0>(info.param).name +
                                  (std::get<1>(info.param) ? "_invariant" : "");
                         });

TEST(ModelLoad, TakesEveryTinyModelWithItsTokenizerOrNone) {
  ThreadPool threads(1);
  for (const TinyModel& tiny : tiny_models()) {
    const auto model = Model::load(tiny.path, {}, threads);
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ((*model)->tokenizer().vocab_size() > 0, tiny.path.extension() == ".gguf")
        << tiny.name;
  }
}

TEST(FamilyRegistry, EveryFamilyHasATinyModel) {
  std::vector<std::string> seen;
  for (const TinyModel& tiny : tiny_models()) {
    TestModel model(tiny.path, {}, 1);
    if (model.ok()) seen.push_back(model.decoder().info().architecture);
  }
  for (const Family* family : all_families()) {
    EXPECT_NE(std::find(seen.begin(), seen.end(), family->name), seen.end()) << family->name;
  }
}

}  // namespace
}  // namespace kvant
