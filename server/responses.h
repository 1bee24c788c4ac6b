// What the API answers: JSON of whole answers, and of the pieces of a stream.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/api.h"

namespace kvant::server {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompts, from the prefix cache
  int64_t completion_tokens = 0;
};

// One answer so far.
struct Choice {
  std::string text;
  FinishReason finish = FinishReason::kRunning;
  Json logprobs = {};
  double logprob_sum = 0;  // of its tokens
  int64_t num_tokens = 0;
};

// Of every run of `samples` choices, which are one prompt's, the `kept` with the highest
// log-probability per token, best first; all of them as they are where that is all.
std::vector<Choice> best_choices(std::vector<Choice> choices, size_t samples, size_t kept);

// Builds every answer to one request.
class Responses {
 public:
  Responses(const ApiRequest& request, std::string model);

  Json whole(const std::vector<Choice>& choices, const Usage& usage) const;
  // Of a stream: an answer's first piece (chats begin with the role), a text, its end; and last, if
  // it was asked for, what all of it took.
  Json first_piece(size_t choice) const;
  Json piece(size_t index, const Choice& choice) const;
  Json usage_piece(const Usage& usage) const;

 private:
  Json frame(bool is_piece) const;
  Json choice_json(size_t index, FinishReason finish, const Json& logprobs = {}) const;

  Endpoint endpoint_;
  std::string model_, id_;
  int64_t created_;
  bool include_usage_;
};

Json models_json(const ApiModel& model, int64_t created);

}  // namespace kvant::server
