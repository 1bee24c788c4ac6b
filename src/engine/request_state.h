// What the engine knows of a request between its submission and its end.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/beam_search.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "engine/stop_strings.h"

namespace kvant {

struct RequestState;

// One answer that is being written, and the sequence that holds its tokens.
struct Sample {
  Sample(RequestState& request, int index, const Tokenizer& tokenizer);

  std::span<const int32_t> held() const {
    return std::span(tokens).first(static_cast<size_t>(cached));
  }
  bool is_decoding() const { return new_tokens > 0; }
  // Its next row is the one that foretells a new token; false while pages that were dropped are
  // computed again.
  bool is_at_end() const { return is_decoding() && cached + 1 == std::ssize(tokens); }

  RequestState& request;
  int index;
  Sampler sampler;
  StreamDecoder decoder;
  StopStrings stops;
  std::vector<int32_t> tokens;  // prompt and answer
  int64_t new_tokens = 0;
  // Where its pages are. kDropped: they are to be computed again.
  enum class Place : uint8_t { kNowhere, kCache, kSwapped, kDropped } place = Place::kNowhere;
  SequenceId sequence = 0;
  int64_t cached = 0;  // of its tokens, that the sequence holds
};

struct RequestState {
  RequestState(RequestId i, GenerationRequest r) : id(i), request(std::move(r)) {
    stats.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  }
  bool is_started() const { return !samples.empty(); }
  // Its prompt isn't in the cache yet, and the first sample stands for all.
  bool is_reading() const { return num_unforked > 0; }

  RequestId id;
  GenerationRequest request;
  RequestStats stats;
  std::chrono::steady_clock::time_point submitted = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<Sample>> samples;  // that aren't finished, by index
  std::vector<TokenLogprobs> prompt_logprobs;  // of what was read so far, where they are asked for
  std::optional<BeamSearch> beams;             // where they are asked for, once the prompt is read
  bool has_failed = false;                     // of beams: all at once
  int num_unforked = 0;  // samples that will be, once the prompt is read, the first among them
};

// A sample's part of one batch.
struct Slice {
  Sample* sample = nullptr;
  size_t first = 0, count = 0;  // of sample->tokens
  bool ends() const { return first + count == sample->tokens.size(); }
};

inline Sample::Sample(RequestState& r, int i, const Tokenizer& tokenizer)
    : request(r),
      index(i),
      sampler([&] {
        SamplingParams params = r.request.sampling;
        params.seed += static_cast<uint64_t>(i);
        return params;
      }()),
      decoder(tokenizer),
      stops(r.request.stop),
      tokens(r.request.prompt) {}

}  // namespace kvant
