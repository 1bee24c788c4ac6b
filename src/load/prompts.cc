#include "load/prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/rng.h"

namespace kvant::load {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFirstWord = "In";
// Words of the texts that prove that tokens add up.
constexpr int64_t kProofs[] = {5, 40, 150};

// What may stand behind one another, and how many of them make texts that differ.
struct CandidateList {
  std::vector<std::string> words;
  size_t fewest;
};

// Words; where a vocabulary is too small for them, letters; of bytes, letters without blanks.
std::vector<CandidateList> candidate_lists() {
  std::vector<CandidateList> lists(3);
  for (std::string_view word : common_words()) lists[0].words.push_back(fmt::format(" {}", word));
  for (char c = 'a'; c <= 'z'; ++c) {
    lists[1].words.push_back(fmt::format(" {}", c));
    lists[2].words.emplace_back(1, c);
  }
  lists[0].fewest = 32;
  lists[1].fewest = lists[2].fewest = 8;
  return lists;
}

std::string joined(std::span<const std::string> words) {
  std::string text(kFirstWord);
  for (const std::string& word : words) text += word;
  return text;
}

// Moves to `out` the words that are one token each: halves of a group are asked for apart where the
// group as a whole has more tokens than words, so that a few bad words cost a few questions.
Status sort_out(TokenCounter& counter, int64_t fixed, std::span<const std::string> group,
                std::vector<std::string>& out) {
  KVANT_ASSIGN(const int64_t tokens, counter.count(joined(group)));
  if (tokens - fixed == static_cast<int64_t>(group.size())) {
    out.insert(out.end(), group.begin(), group.end());
    return {};
  }
  if (group.size() == 1) return {};
  const size_t half = group.size() / 2;
  KVANT_TRY(sort_out(counter, fixed, group.first(half), out));
  return sort_out(counter, fixed, group.subspan(half), out);
}

Status check_message(const Json& message, const std::string& where) {
  const bool fits = message.is_object() && message.contains("role") && message["role"].is_string();
  if (fits) return {};
  return corrupt(fmt::format("{}: wanted messages as objects with a role", where));
}

Result<FilePrompt> parse_line(std::string_view line, const std::string& where, Messages allowed) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object()) return corrupt(fmt::format("{}: no JSON object", where));
  FilePrompt prompt;
  const auto text = json.find("prompt"), messages = json.find("messages");
  if ((text == json.end()) == (messages == json.end()))
    return corrupt(fmt::format("{}: wanted either \"prompt\" or \"messages\"", where));
  if (text != json.end()) {
    if (!text->is_string() || text->get_ref<const std::string&>().empty())
      return corrupt(fmt::format("{}: prompt isn't a text of some length", where));
    prompt.prompt = *text;
  } else {
    if (allowed == Messages::kRefused) {
      return invalid_argument(
          fmt::format("{}: messages go to the chat endpoint; wanted --chat beside it", where));
    }
    if (!messages->is_array() || messages->empty())
      return corrupt(fmt::format("{}: messages isn't a list of some length", where));
    for (const Json& message : *messages) KVANT_TRY(check_message(message, where));
    prompt.messages = messages->dump();
  }
  if (const auto tokens = json.find("max_tokens"); tokens != json.end()) {
    if (!tokens->is_number_integer() || *tokens < 1 || *tokens > (1 << 24))
      return corrupt(fmt::format("{}: max_tokens isn't a whole number from 1 to 2^24", where));
    prompt.max_tokens = tokens->get<int64_t>();
  }
  return prompt;
}

}  // namespace

Result<PromptWords> PromptWords::find(TokenCounter& counter) {
  PromptWords found;
  KVANT_ASSIGN(found.fixed_tokens_, counter.count(std::string(kFirstWord)));
  for (const CandidateList& list : candidate_lists()) {
    found.words_.clear();
    KVANT_TRY(sort_out(counter, found.fixed_tokens_, list.words, found.words_));
    if (found.words_.size() < list.fewest) continue;
    KVANT_ASSIGN(const bool proven, found.adds_up(counter));
    if (proven) return found;
  }
  return unsupported(fmt::format(
      "prompts of an exact length can't be made: neither common words nor letters are one token "
      "each, wherever they stand, to {}; give prompts of your own with --prompts",
      counter.name()));
}

Result<bool> PromptWords::adds_up(TokenCounter& counter) const {
  for (int64_t words : kProofs) {
    const int64_t wanted = fixed_tokens_ + words;
    KVANT_ASSIGN(const int64_t tokens,
                 counter.count(text(wanted, 0, 0, static_cast<uint64_t>(words))));
    if (tokens != wanted) return false;
  }
  return true;
}

std::string PromptWords::text(int64_t tokens, int64_t shared, uint64_t shared_seed,
                              uint64_t seed) const {
  Rng common(shared_seed), own(seed);
  std::string text(kFirstWord);
  for (int64_t i = fixed_tokens_; i < tokens; ++i)
    text += words_[(i < shared ? common : own).below(words_.size())];
  return text;
}

Result<std::vector<FilePrompt>> parse_prompts(std::string_view text, std::string_view name,
                                              Messages messages) {
  std::vector<FilePrompt> prompts;
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    KVANT_ASSIGN(FilePrompt prompt, parse_line(line, fmt::format("{}:{}", name, number), messages));
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) {
    return invalid_argument(fmt::format(
        "{} has no prompts; wanted a line of JSON with \"prompt\" or \"messages\" for each", name));
  }
  return prompts;
}

}  // namespace kvant::load
