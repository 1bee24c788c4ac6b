// The requests of the API, from JSON to what the engine takes. No socket and no thread is in here.
//
// Fields are those of OpenAI's completions and chat completions, and vLLM's extensions of them
// (ignore_eos, min_tokens, min_p, top_k, repetition_penalty, cache_salt, use_beam_search,
// length_penalty). A field of the wrong
// type, out of its range, unknown or not served is refused by its name: nothing is left out
// silently.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "model/tokenizer.h"

namespace kvant::server {

using Json = nlohmann::ordered_json;

// An answer that isn't the one asked for, in OpenAI's shape.
struct ApiError {
  int http = 400;
  std::string message = {};
  std::string param = {};  // the field to blame; empty: none
  std::string type = "invalid_request_error";
  std::string code = {};  // empty: none
};
Json error_json(const ApiError& error);
// From the system: for ids, and for seeds that nobody gave.
uint64_t random_bits();
// What a status of the engine's or the cache's means to a client.
ApiError error_of(const Status& status);

// Of the model that is served.
struct ApiModel {
  std::string name;
  const Tokenizer& tokenizer;
  int64_t context = 0;  // tokens of a sequence
};

enum class Endpoint : uint8_t { kCompletions, kChat };

struct ApiRequest {
  Endpoint endpoint = Endpoint::kCompletions;
  std::vector<GenerationRequest> generations;  // one per prompt, each of best_of samples...
  int num_answers = 1;  // ... of which the n likeliest are given: by the mean of a token's logprob
  std::vector<std::string> echoes;  // what every answer's text begins with
  bool echo = false;
  bool has_logprobs = false;  // of every token, the prompt's among them with echo
  bool stream = false;
  bool include_usage = false;  // of a stream
};

// Either the request or why it is refused.
template <typename T>
struct Parsed {
  T value = {};
  std::optional<ApiError> error = {};
};

// JSON text to an object.
Parsed<Json> parse_body(std::string_view body);
Parsed<ApiRequest> parse_completions(const Json& body, const ApiModel& model);
Parsed<ApiRequest> parse_chat(const Json& body, const ApiModel& model);

struct TokenizeRequest {
  std::vector<int32_t> tokens;
};
// {"prompt": text, "add_special_tokens"} or {"messages": [...], "add_generation_prompt"}.
Parsed<TokenizeRequest> parse_tokenize(const Json& body, const ApiModel& model);
// {"tokens": [...]}.
Parsed<TokenizeRequest> parse_detokenize(const Json& body, const ApiModel& model);

}  // namespace kvant::server
