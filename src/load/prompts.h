// Prompts: texts of an exact number of tokens, made of words that are one token each wherever they
// stand, and prompts of a user's own file.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/status.h"

namespace kvant::load {

// Counts the tokens of a prompt as the server will count them: with the BOS token, of a chat with
// what its template adds.
class TokenCounter {
 public:
  virtual ~TokenCounter() = default;
  virtual Result<int64_t> count(const std::string& prompt) = 0;
  virtual std::string name() const = 0;  // "the tokenizer of model.gguf", for messages
};

class PromptWords {
 public:
  // Sorts out, by counting, which of a list of common English words are one token each behind
  // another word (where too few are, which letters are), and checks the sum on longer texts.
  // unsupported where nothing adds up; a counter's own failure as it is.
  static Result<PromptWords> find(TokenCounter& counter);

  // A text of `tokens` tokens: its first `shared` are the same for equal `shared_seed`, the others
  // are drawn by `seed`. REQUIRES: tokens ≥ fewest_tokens().
  std::string text(int64_t tokens, int64_t shared, uint64_t shared_seed, uint64_t seed) const;

  int64_t fewest_tokens() const { return fixed_tokens_; }
  std::span<const std::string> words() const { return words_; }

 private:
  Result<bool> adds_up(TokenCounter& counter) const;

  std::vector<std::string> words_;  // with what goes before each: a blank, or nothing
  int64_t fixed_tokens_ = 0;        // of a text with none of them: its first word, and BOS or so
};

// The list that PromptWords chooses from.
std::span<const std::string_view> common_words();

// A line of a file of prompts: {"prompt": "…"} or {"messages": […]}, maybe with "max_tokens".
struct FilePrompt {
  std::string prompt;
  std::string messages;  // JSON, or empty
  std::optional<int64_t> max_tokens;
};
enum class Messages : uint8_t { kRefused, kAllowed };
// `name` stands for the file in messages. corrupt with the line's number, invalid_argument where no
// prompt is in it or `messages` aren't allowed.
Result<std::vector<FilePrompt>> parse_prompts(std::string_view text, std::string_view name,
                                              Messages messages);

}  // namespace kvant::load
