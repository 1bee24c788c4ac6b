// Prefixes, samples and preemption on real decoders, whose full blocks and single rows take two
// dense paths that differ in their last bits: what came row by row mustn't stand for a block.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <optional>

#include "base/threads.h"
#include "engine/engine.h"
#include "engine/toy_model.h"
#include "model/model.h"
#include "model/model_identity.h"

namespace kvant {
namespace {

class DecoderSharingTest : public testing::TestWithParam<const char*> {
 protected:
  void load(ModelOptions options = {}) {
    const std::filesystem::path path =
        std::filesystem::path(KVANT_TEST_DATA) / "models" / GetParam();
    model_ = std::move(Model::load(path, options, threads_).value());
    identity_ = model_identity(path, model_->info(), options).value();
    invariant_ = options.invariant;
  }
  void open(const FormatPair& formats, bool prefix_cache, uint64_t max_bytes = 0,
            std::optional<uint64_t> max_swap_bytes = std::nullopt) {
    engine_.reset();
    CacheOptions options = toy::cache_options(*model_, formats);
    for (size_t l = 0; l < options.layers.size(); ++l) {
      if (!model_->info().layer_shapes[l].quantizable) options.layers[l].formats = {"bf16", "bf16"};
    }
    options.model_identity = identity_;
    options.prefix_cache = prefix_cache;
    options.paths_agree = invariant_;
    options.max_bytes = max_bytes;
    cache_ = std::move(KvCache::create(options, threads_).value());
    engine_ = std::make_unique<Engine>(
        *model_, *cache_, EngineOptions{.chunk = 128, .max_swap_bytes = max_swap_bytes});
  }
  // What the longest sequence holds at its dearest: with windows that isn't its end.
  uint64_t bytes_of_one() const {
    uint64_t most = 0;
    for (int64_t n = 1; n <= 256; ++n) most = std::max(most, cache_->bytes_at(n));
    return most;
  }
  GenerationRequest request_of(std::vector<int32_t> prompt, int64_t max_tokens) const {
    GenerationRequest r;
    r.prompt = std::move(prompt);
    r.sampling = {.temperature = 1, .seed = 5};
    r.max_tokens = max_tokens;
    r.ignore_end = true;
    return r;
  }
  std::vector<int32_t> random_prompt(size_t tokens, uint64_t seed) const {
    std::vector<int32_t> prompt = toy::random_tokens(tokens, seed);
    for (int32_t& id : prompt) id %= model_->info().vocab_size;
    return prompt;
  }
  // Tokens of each sample.
  std::vector<std::vector<int32_t>> ask(const GenerationRequest& request) {
    std::vector<std::vector<int32_t>> out(static_cast<size_t>(request.num_samples));
    const RequestId id = engine_->submit(request).value();
    while (!engine_->idle()) {
      for (const GenerationEvent& e : engine_->step()) {
        EXPECT_TRUE(e.status.ok()) << e.status.message();
        if (e.token) out[static_cast<size_t>(e.sample)].push_back(*e.token);
      }
    }
    cached_ = engine_->take_stats(id)->cached_tokens;
    EXPECT_TRUE(cache_->check_invariants().ok()) << cache_->check_invariants().message();
    return out;
  }

  ThreadPool threads_{2};
  std::unique_ptr<Model> model_;
  std::string identity_;
  bool invariant_ = false;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Engine> engine_;
  int64_t cached_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Models, DecoderSharingTest,
                         testing::Values("llama", "gemma3", "qwen2-yarn-sliding", "deepseek_v2",
                                         "qwen3_moe"));

// A prompt's log-probabilities are those of the paths that its rows took, whatever the chunk.
TEST_P(DecoderSharingTest, PromptsAreScoredByTheirOwnPaths) {
  load();
  open({"bf16", "bf16"}, false);
  const std::vector<int32_t> prompt = random_prompt(200, 3);
  const auto hidden_size = static_cast<size_t>(model_->info().hidden_size);
  const auto vocab = static_cast<size_t>(model_->info().vocab_size);
  std::vector<float> hidden(200 * hidden_size), logits(200 * vocab);
  const SequenceId sequence = cache_->create_sequence().value();
  const ForwardItem item{sequence, prompt};
  ASSERT_TRUE(model_->forward(*cache_, {&item, 1}, hidden.data()).ok());
  ASSERT_TRUE(model_->logits(hidden.data(), 192, Model::Dense::kBlock, logits.data()).ok());
  ASSERT_TRUE(
      model_->logits(&hidden[192 * hidden_size], 8, Model::Dense::kRow, &logits[192 * vocab]).ok());
  GenerationRequest request = request_of(prompt, 0);
  request.prompt_logprobs = 0;
  ASSERT_TRUE(engine_->submit(request).ok());
  std::vector<TokenLogprobs> scores;
  while (!engine_->idle()) {
    for (GenerationEvent& e : engine_->step()) scores = std::move(e.prompt_logprobs);
  }
  ASSERT_EQ(scores.size(), 199u);
  for (size_t i = 0; i < 199; ++i) {
    const std::span<const float> row = std::span(logits).subspan(i * vocab, vocab);
    EXPECT_EQ(scores[i].chosen.logprob, logprobs_of(row, prompt[i + 1], 0).chosen.logprob) << i;
  }
  EXPECT_TRUE(cache_->release_sequence(sequence).ok());
}

// A conversation: each turn's prompt has the last one's answer in it, which was computed row by row
// and is computed as blocks now, unless the model is invariant.
TEST_P(DecoderSharingTest, CaseC1_CaseC17_ATurnMoreGivesTheTokensOfAMiss) {
  for (const bool invariant : {false, true}) {
    load({.invariant = invariant});
    for (const FormatPair& formats : {FormatPair{"bf16", "bf16"}, {"int8_token", "int4_token_z"}}) {
      std::vector<std::vector<int32_t>> cold;
      for (const bool shared : {false, true}) {
        open(formats, shared);
        std::vector<int32_t> prompt = random_prompt(70, 1);
        int64_t came_as_blocks = 0;
        for (size_t turn = 0; turn < 3; ++turn) {
          const std::vector<int32_t> answer = ask(request_of(prompt, 60))[0];
          if (shared) {
            EXPECT_EQ(answer, cold[turn]) << formats.name() << " turn " << turn;
            EXPECT_EQ(cached_, came_as_blocks) << formats.name() << " turn " << turn;
          } else {
            cold.push_back(answer);
          }
          const size_t known = invariant ? prompt.size() + answer.size() - 1 : prompt.size();
          came_as_blocks = static_cast<int64_t>(known / 64 * 64);
          prompt.insert(prompt.end(), answer.begin(), answer.end());
          const std::vector<int32_t> more = random_prompt(12, turn + 2);
          prompt.insert(prompt.end(), more.begin(), more.end());
        }
      }
    }
  }
}

TEST_P(DecoderSharingTest, CaseC7_SamplesAndPreemptionChangeNothing) {
  load();
  const FormatPair formats = {"int8_token", "int8_token"};
  open(formats, false);
  std::vector<std::vector<int32_t>> solo;
  GenerationRequest request = request_of(random_prompt(150, 3), 90);
  for (int i = 0; i < 3; ++i) {
    solo.push_back(ask(request)[0]);
    ++request.sampling.seed;
  }
  request.sampling.seed = 5;
  request.num_samples = 3;
  open(formats, true);
  EXPECT_EQ(ask(request), solo);
  EXPECT_EQ(engine_->load().preemptions, 0);
  open(formats, true, bytes_of_one() * 3 / 2);
  EXPECT_EQ(ask(request), solo);
  EXPECT_GT(engine_->load().preemptions, 0);
}

// What is dropped, in the middle of a prompt or of an answer that has whole blocks, is computed
// again to the same bits: prompts as blocks, answers as rows.
TEST_P(DecoderSharingTest, PagesThatWereDroppedComeBackByBits) {
  struct Answer {
    std::vector<int32_t> tokens;
    std::vector<double> logprobs;  // of the prompt, then of the tokens
  };
  const auto drain = [&](const std::vector<GenerationRequest>& requests) {
    std::map<RequestId, size_t> index;
    for (size_t i = 0; i < requests.size(); ++i) index[engine_->submit(requests[i]).value()] = i;
    std::vector<Answer> answers(requests.size() * 2);  // of two samples at most
    while (!engine_->idle()) {
      for (const GenerationEvent& e : engine_->step()) {
        EXPECT_TRUE(e.status.ok()) << e.status.message();
        Answer& answer = answers[index[e.request] * 2 + static_cast<size_t>(e.sample)];
        if (e.token) answer.tokens.push_back(*e.token);
        for (const TokenLogprobs& l : e.prompt_logprobs)
          answer.logprobs.push_back(l.chosen.logprob);
        if (e.logprobs) answer.logprobs.push_back(e.logprobs->chosen.logprob);
      }
    }
    EXPECT_TRUE(cache_->check_invariants().ok()) << cache_->check_invariants().message();
    return answers;
  };
  load();
  std::vector<GenerationRequest> requests;
  for (uint64_t i = 0; i < 6; ++i) {
    GenerationRequest r = request_of(random_prompt(10 + i % 3 * 70, i), 250 - 10 - 70 * (i % 3));
    r.logprobs = 0;
    if (i % 2 == 1) r.prompt_logprobs = 0;
    r.num_samples = i % 2 == 0 ? 2 : 1;
    requests.push_back(std::move(r));
  }
  const FormatPair formats = {"int8_token", "int4_token_z"};
  open(formats, false);
  const uint64_t most = bytes_of_one() * 3 / 2;
  std::vector<Answer> alone;
  for (const GenerationRequest& r : requests) {
    for (Answer& answer : drain({r})) alone.push_back(std::move(answer));
  }
  for (const bool prefix_cache : {false, true}) {
    open(formats, prefix_cache, most, 0);
    ASSERT_EQ(engine_->context(), 256);
    const std::vector<Answer> together = drain(requests);
    for (size_t i = 0; i < alone.size(); ++i) {
      EXPECT_EQ(together[i].tokens, alone[i].tokens) << "answer " << i;
      EXPECT_EQ(together[i].logprobs, alone[i].logprobs) << "answer " << i;
    }
    EXPECT_GT(engine_->load().recomputations, 0);
    EXPECT_EQ(engine_->load().recomputations, engine_->load().preemptions);
  }
}

}  // namespace
}  // namespace kvant
