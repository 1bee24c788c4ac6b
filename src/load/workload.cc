#include "load/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "engine/settings.h"

namespace kvant::load {
namespace {

using Json = nlohmann::ordered_json;

// What a random number is for: no two draws come from the same one.
enum Purpose : uint64_t { kLength = 1, kWords, kArrival, kShared };

int64_t draw(const TokenRange& range, Rng& rng) {
  return range.low +
         static_cast<int64_t>(rng.below(static_cast<uint64_t>(range.high - range.low) + 1));
}

}  // namespace

std::string_view api_path(Api api) {
  return api == Api::kChat ? "/v1/chat/completions" : "/v1/completions";
}

std::string TokenRange::text() const {
  return low == high ? fmt::format("{}", low) : fmt::format("{}:{}", low, high);
}

Result<TokenRange> parse_range(std::string_view text) {
  const size_t colon = std::min(text.find(':'), text.size());
  TokenRange range;
  KVANT_ASSIGN(range.low, parse_count(text.substr(0, colon)));
  range.high = range.low;
  if (colon == text.size()) return range;
  KVANT_ASSIGN(range.high, parse_count(text.substr(colon + 1)));
  if (range.high < range.low) {
    return invalid_argument(
        fmt::format("{} is less than {}; wanted LOW:HIGH", range.high, range.low));
  }
  return range;
}

Workload::Workload(WorkloadOptions options, const PromptWords& words)
    : options_(std::move(options)), words_(&words) {}
Workload::Workload(WorkloadOptions options, const std::vector<FilePrompt>& prompts)
    : options_(std::move(options)), prompts_(&prompts) {}

uint64_t Workload::stream(uint64_t purpose, int64_t index) const {
  return mix64(mix64(mix64(options_.seed) ^ options_.level) ^ purpose) ^
         static_cast<uint64_t>(index);
}

PlannedRequest Workload::request(int64_t index) const {
  Rng lengths(stream(kLength, index));
  PlannedRequest planned;
  Json body = {{"model", options_.model}};
  std::string prompt;
  const FilePrompt* file = nullptr;
  if (prompts_ != nullptr) {
    file = &(*prompts_)[static_cast<size_t>(index) % prompts_->size()];
    prompt = file->prompt;
  } else {
    planned.prompt_tokens = draw(options_.input, lengths);
    const auto shared = static_cast<int64_t>(
        std::floor(options_.shared_prefix * static_cast<double>(planned.prompt_tokens)));
    // The words that all share don't depend on the level: that is what they are shared for.
    prompt = words_->text(planned.prompt_tokens, shared, mix64(options_.seed ^ kShared),
                          stream(kWords, index));
  }
  planned.max_tokens = draw(options_.output, lengths);
  if (file != nullptr && file->max_tokens) planned.max_tokens = *file->max_tokens;
  if (options_.api == Api::kCompletions) {
    body["prompt"] = prompt;
  } else if (file != nullptr && !file->messages.empty()) {
    body["messages"] = Json::parse(file->messages, nullptr, false);
  } else {
    body["messages"] = Json::array({{{"role", "user"}, {"content", prompt}}});
  }
  body["max_tokens"] = planned.max_tokens;
  body["temperature"] = 0;
  body["seed"] = options_.seed;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  if (options_.ignore_eos) body["ignore_eos"] = true;
  planned.body = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  return planned;
}

double Workload::gap(int64_t index, double rate) const {
  return -std::log1p(-Rng(stream(kArrival, index)).uniform()) / rate;
}

}  // namespace kvant::load
