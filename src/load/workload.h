// Workload: the requests of a level, each a pure function of seed, level and index. The same seed
// gives the same requests in the same order, whatever the server does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "load/prompts.h"
#include "load/record.h"

namespace kvant::load {

enum class Api : uint8_t { kCompletions, kChat };
std::string_view api_path(Api api);  // "/v1/completions"

// Tokens from `low` to `high`, drawn uniformly, both included.
struct TokenRange {
  int64_t low = 0, high = 0;
  std::string text() const;  // "512" or "512:1024"
};
// "512:1024" or "512"; k is 1024. invalid_argument otherwise.
Result<TokenRange> parse_range(std::string_view text);

struct WorkloadOptions {
  Api api = Api::kCompletions;
  std::string model;
  TokenRange input, output;
  double shared_prefix = 0;  // of each prompt's tokens
  bool ignore_eos = false;
  uint64_t seed = 0;
  uint64_t level = 0;  // levels of one run have different requests, so that none was seen before
};

struct PlannedRequest {
  std::string body;  // JSON
  int64_t prompt_tokens = -1;
  int64_t max_tokens = 0;
};

class Workload {
 public:
  // Prompts of random words. `words` outlives it.
  Workload(WorkloadOptions options, const PromptWords& words);
  // Prompts of a file, in turn, over and over. REQUIRES: not empty.
  Workload(WorkloadOptions options, const std::vector<FilePrompt>& prompts);

  PlannedRequest request(int64_t index) const;
  // Seconds between the arrivals of requests `index` − 1 and `index` of a Poisson process.
  double gap(int64_t index, double rate) const;

 private:
  uint64_t stream(uint64_t purpose, int64_t index) const;

  WorkloadOptions options_;
  const PromptWords* words_ = nullptr;
  const std::vector<FilePrompt>* prompts_ = nullptr;
};

}  // namespace kvant::load
