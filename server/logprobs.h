// Logprobs of the API: what a request's answers say about the log-probabilities of their tokens, in
// the shape of its endpoint.
//
// Completions: {"tokens", "token_logprobs", "top_logprobs", "text_offset"}, where the prompt's
// tokens come first with echo, and its first one has none. Chats: {"content": [{"token", "logprob",
// "bytes", "top_logprobs"}]}. A token that isn't UTF-8 by itself is spelled as OpenAI does:
// "bytes:\xe2\x96". Minus infinity, which JSON doesn't have, is -9999.
#pragma once

#include <string>
#include <vector>

#include "server/api.h"

namespace kvant::server {

class Logprobs {
 public:
  // Both outlive this.
  Logprobs(const ApiRequest& request, const Tokenizer& tokenizer);

  // What happened to an answer, `choice` of `prompt`.
  void add(size_t prompt, size_t choice, const GenerationEvent& event);
  // Of what was added since the last call; null where nothing was.
  Json take(size_t choice);

 private:
  // The texts of one answer's tokens so far.
  struct Answer {
    bool has_begun = false;
    bool has_text = false;  // some tokenizers drop the first token's space
    int64_t offset = 0;     // characters
    Json json;
  };

  void add_token(Answer& answer, int32_t token, const TokenLogprobs* logprobs);
  Json chat_token(const TokenLogprob& logprob, bool first) const;
  std::string spelled(int32_t token, bool first) const;

  const ApiRequest& request_;
  const Tokenizer& tokenizer_;
  bool is_wanted_;
  std::vector<std::vector<TokenLogprobs>> prompts_;
  std::vector<Answer> answers_;
};

}  // namespace kvant::server
