// Beam search in the engine against a naive one that computes each beam from scratch.
#include <algorithm>
#include <cmath>

#include "engine/sharing_harness.h"

namespace kvant {
namespace {

struct Beam {
  std::vector<int32_t> tokens;
  double sum = 0;
  double score = 0;
};

class BeamSearchTest : public SharingTest {
 protected:
  static GenerationRequest beams_of(size_t prompt, uint64_t seed, int width, int64_t max_tokens,
                                    double length_penalty = 1) {
    GenerationRequest r = request_of(prompt, seed, max_tokens);
    r.sampling = {};
    r.num_samples = width;
    r.ignore_end = false;
    r.beams = {.length_penalty = length_penalty};
    return r;
  }

  // Log-probabilities behind a text, on a new sequence: the prompt at once, then token by token.
  std::vector<double> logprobs_behind(const GenerationRequest& request,
                                      const std::vector<int32_t>& answer) {
    const SequenceId sequence = cache_->create_sequence().value();
    std::vector<float> hidden(request.prompt.size() * toy::kHidden), logits(toy::kVocab);
    const ForwardItem prompt{sequence, request.prompt};
    EXPECT_TRUE(model_->forward(*cache_, {&prompt, 1}, hidden.data()).ok());
    const float* last = &hidden[hidden.size() - toy::kHidden];
    for (const int32_t& token : answer) {
      const ForwardItem one{sequence, {&token, 1}};
      EXPECT_TRUE(model_->forward(*cache_, {&one, 1}, hidden.data()).ok());
      last = hidden.data();
    }
    EXPECT_TRUE(model_->logits(last, 1, Model::Dense::kRow, logits.data()).ok());
    EXPECT_TRUE(cache_->release_sequence(sequence).ok());
    const double best = *std::ranges::max_element(logits);
    double mass = 0;
    for (const float l : logits) mass += std::exp(l - best);
    std::vector<double> out;
    for (const float l : logits) out.push_back(l - (best + std::log(mass)));
    return out;
  }

  std::vector<Beam> naive_search(const GenerationRequest& request) {
    const auto width = static_cast<size_t>(request.num_samples);
    const auto score = [&](const Beam& b) {
      return b.sum / std::pow(static_cast<double>(b.tokens.size()), request.beams->length_penalty);
    };
    std::vector<Beam> beams(1), done;
    const auto complete = [&](Beam beam) {
      beam.score = score(beam);
      done.push_back(std::move(beam));
      std::ranges::stable_sort(done, std::greater(), &Beam::score);
      if (done.size() > width) done.pop_back();
    };
    for (int64_t length = 0; length < request.max_tokens; ++length) {
      std::vector<Beam> all;
      for (const Beam& beam : beams) {
        const std::vector<double> logprobs = logprobs_behind(request, beam.tokens);
        for (int32_t t = 0; t < toy::kVocab; ++t) {
          if (t == toy::kEnd && length < request.min_tokens) continue;
          all.push_back({beam.tokens, beam.sum + logprobs[static_cast<size_t>(t)]});
          all.back().tokens.push_back(t);
        }
      }
      std::ranges::stable_sort(all, std::greater(), &Beam::sum);
      beams.clear();
      for (size_t rank = 0; rank < 2 * width && beams.size() < width; ++rank) {
        const bool ends = all[rank].tokens.back() == toy::kEnd;
        if (!ends) beams.push_back(all[rank]);
        if (ends && rank < width) {
          ++num_ended_;
          complete(all[rank]);
        }
      }
      if (done.size() == width && done.back().score >= score(beams.front())) return done;
    }
    for (const Beam& beam : beams) complete(beam);
    return done;
  }

  void expect_tokens(const std::vector<Beam>& wanted, const std::vector<std::vector<int32_t>>& got,
                     const std::string& what) {
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], wanted[i].tokens) << what << " " << i;
  }
  int num_ended_ = 0;
};

// Prompts within a page, at its end and over several; widths 1 to 5; a sliding layer.
TEST_F(BeamSearchTest, CaseC7_BeamsAreThoseOfANaiveSearch) {
  constexpr std::pair<int, int> kShapes[] = {{60, 3}, {64, 4}, {126, 2}, {5, 1}, {62, 5}};
  for (size_t i = 0; i < std::size(kShapes); ++i) {
    const auto [prompt, width] = kShapes[i];
    const FormatPair& formats = some_formats()[i % some_formats().size()];
    const int window = i % 2 == 0 ? 100 : 0;
    const GenerationRequest request =
        beams_of(static_cast<size_t>(prompt), static_cast<uint64_t>(prompt), width, 6);
    open(formats, {}, {.window = window});
    const std::vector<Beam> wanted = naive_search(request);
    open_shared(formats, {}, {.window = window});
    for (int time = 0; time < 2; ++time) {  // of nothing, and of a prefix
      const RequestId id = submit(request);
      expect_tokens(wanted, drain_samples(id, static_cast<size_t>(width)), formats.name());
      EXPECT_EQ(used_bytes(), 0u);
      check();
    }
  }
}

// A sharp model that ends often: hypotheses of several lengths, under several penalties.
TEST_F(BeamSearchTest, EndsAndLengthPenaltiesRankAsInANaiveSearch) {
  const FormatPair formats = {"int8_token", "int8_token"};
  for (const double penalty : {-2.0, 0.0, 0.5, 1.0, 2.0}) {
    for (uint64_t seed = 0; seed < (kSlowBuild ? 4 : 40); ++seed) {
      GenerationRequest request = beams_of(20, seed, 3, 8, penalty);
      request.min_tokens = static_cast<int64_t>(seed % 3);
      open(formats, {}, {.sharpness = 0.25f});
      const std::vector<Beam> wanted = naive_search(request);
      expect_tokens(wanted, drain_samples(submit(request), 3), std::to_string(seed));
      EXPECT_EQ(cache_->usage().live_bytes, 0u);
    }
  }
  if (!kSlowBuild) {
    EXPECT_GT(num_ended_, 5);
  }
}

// Searches and samples that don't fit together: whole searches leave and come back.
TEST_F(BeamSearchTest, WhoIsPreemptedGoesOnWithTheSameBeams) {
  for (const FormatPair& formats : some_formats()) {
    const toy::ToyOptions toy = {.window = 100};
    std::vector<GenerationRequest> requests;
    for (size_t i = 0; i < 4; ++i) {
      requests.push_back(i == 1 ? request_of(100, i, 120) : beams_of(90 + 20 * i, i, 3, 100));
      requests.back().ignore_end = true;
    }
    open(formats, {}, toy);
    std::vector<std::vector<std::vector<int32_t>>> solo;
    for (const GenerationRequest& r : requests)
      solo.push_back(drain_samples(submit(r), static_cast<size_t>(r.num_samples)));
    open_shared(formats, {}, toy, bytes_of(formats, toy, {260, 260, 260, 128}));
    std::map<RequestId, std::vector<std::vector<int32_t>>> got;
    std::vector<RequestId> ids;
    for (const GenerationRequest& r : requests) {
      ids.push_back(submit(r));
      got[ids.back()].resize(static_cast<size_t>(r.num_samples));
    }
    while (!engine_->idle()) {
      for (const GenerationEvent& e : engine_->step()) {
        ASSERT_TRUE(e.status.ok()) << e.status.message();
        if (e.token) got[e.request][static_cast<size_t>(e.sample)].push_back(*e.token);
      }
      check();
    }
    EXPECT_GT(engine_->load().preemptions, 0);
    for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(got[ids[i]], solo[i]) << formats.name() << i;
    EXPECT_EQ(used_bytes(), 0u);
  }
}

TEST_F(BeamSearchTest, ACancelledSearchLeavesNoPages) {
  open({"int8_token", "int8_token"});
  const RequestId id = submit(beams_of(100, 1, 4, 50));
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(engine_->step().empty());
  EXPECT_TRUE(engine_->cancel(id).ok());
  EXPECT_EQ(cache_->usage().live_bytes, 0u);
  check();
}

TEST_F(BeamSearchTest, AContextThatFillsEndsTheSearch) {
  open({"int8_token", "int8_token"}, {.context = 40});
  GenerationRequest request = beams_of(30, 1, 2, 100);
  request.ignore_end = true;
  for (const std::vector<int32_t>& tokens : drain_samples(submit(request), 2))
    EXPECT_EQ(tokens.size(), 11u);
  EXPECT_EQ(cache_->usage().live_bytes, 0u);
}

TEST_F(BeamSearchTest, WhatDoesNotGoWithItIsRefused) {
  open_shared({"int8_token", "int8_token"}, {}, {}, 1'000'000);
  const auto refusal = [&](void (*change)(GenerationRequest&)) {
    GenerationRequest request = beams_of(20, 1, 4, 10);
    change(request);
    return engine_->submit(request).status().message();
  };
  EXPECT_EQ(refusal([](GenerationRequest& r) { r.sampling.temperature = 0.5; }),
            "temperature is 0.5, wanted 0 with beam search");
  EXPECT_EQ(refusal([](GenerationRequest& r) { r.stop = {"a"}; }),
            "beam search takes no stop strings");
  EXPECT_EQ(refusal([](GenerationRequest& r) { r.num_samples = 200; }),
            "num_samples is 200, wanted 1 to 128 beams of this vocabulary");
  EXPECT_EQ(refusal([](GenerationRequest& r) { r.beams->length_penalty = NAN; }),
            "length_penalty is nan, wanted a finite number");
  const std::string large = refusal([](GenerationRequest& r) {
    r.num_samples = 100;
    r.max_tokens = 3000;
  });
  EXPECT_TRUE(large.starts_with("100 beams of ")) << large;
}

}  // namespace
}  // namespace kvant
