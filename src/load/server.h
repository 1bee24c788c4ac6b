// What a server tells of itself: its models, its version, its counters, and how many tokens a text
// has.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "load/http.h"
#include "load/prompts.h"

namespace kvant {
class Tokenizer;
}

namespace kvant::load {

struct ServerFacts {
  std::vector<std::string> models;  // as /v1/models lists them; empty where it doesn't
  std::string version;              // of /version, or of llama.cpp's /props; "": not told
  std::string software;             // the Server header
};
// io where it can't be reached, or doesn't answer in time.
Result<ServerFacts> ask_facts(const Endpoint& server);

// The name to ask for: `wanted`, or where it is empty the only one there is. invalid_argument with
// the names otherwise.
Result<std::string> choose_model(const ServerFacts& facts, const std::string& wanted);

// Preemptions since the server began, by the counters of its /metrics whose names end in
// preemptions_total; none where there are none.
std::optional<int64_t> ask_preemptions(const Endpoint& server);
// The same of a Prometheus text.
std::optional<int64_t> parse_preemptions(std::string_view metrics);

// Counts by our own reader of tokenizers. A chat's prompt is rendered in its template, where it has
// one. `tokenizer` outlives it.
std::unique_ptr<TokenCounter> tokenizer_counter(const Tokenizer& tokenizer, std::string path,
                                                Api api);

// Counts by the server: by /tokenize as vLLM and Kvant have it, as llama.cpp has it, or, for a chat
// and where there is none, by the usage of an answer of one token. unsupported where it does none.
Result<std::unique_ptr<TokenCounter>> server_counter(const Endpoint& server, std::string model,
                                                     Api api, double timeout_s);

}  // namespace kvant::load
