#include "server/logprobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "model/chat/text.h"
#include "model/tokenizer/unicode.h"

namespace kvant::server {
namespace {

double finite(double logprob) { return std::max(logprob, -9999.0); }

}  // namespace

Logprobs::Logprobs(const ApiRequest& request, const Tokenizer& tokenizer)
    : request_(request),
      tokenizer_(tokenizer),
      is_wanted_(request.has_logprobs),
      prompts_(request.generations.size()),
      answers_(request.generations.size() *
               static_cast<size_t>(request.generations.front().num_samples)) {}

void Logprobs::add(size_t prompt, size_t choice, const GenerationEvent& event) {
  if (!is_wanted_) return;
  Answer& answer = answers_[choice];
  if (!event.prompt_logprobs.empty()) prompts_[prompt] = event.prompt_logprobs;
  if (!answer.has_begun && request_.echo) {
    add_token(answer, request_.generations[prompt].prompt.front(), nullptr);
    for (const TokenLogprobs& l : prompts_[prompt]) add_token(answer, l.chosen.token, &l);
  }
  answer.has_begun = true;
  if (event.logprobs) add_token(answer, event.logprobs->chosen.token, &*event.logprobs);
}

std::string Logprobs::spelled(int32_t token, bool first) const {
  if (tokenizer_.is_special(token)) return std::string(tokenizer_.piece(token));
  std::string bytes = tokenizer_.token_bytes(token, first);
  if (tokenizer::is_valid_utf8(bytes)) return bytes;
  std::string out = "bytes:";
  for (const char c : bytes)
    out += fmt::format("\\x{:02x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
  return out;
}

Json Logprobs::chat_token(const TokenLogprob& logprob, bool first) const {
  const std::string bytes = tokenizer_.is_special(logprob.token)
                                ? std::string(tokenizer_.piece(logprob.token))
                                : tokenizer_.token_bytes(logprob.token, first);
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return {{"token", spelled(logprob.token, first)},
          {"logprob", finite(logprob.logprob)},
          {"bytes", std::move(list)}};
}

void Logprobs::add_token(Answer& answer, int32_t token, const TokenLogprobs* logprobs) {
  const bool first = !answer.has_text && request_.echo;
  if (!tokenizer_.is_special(token)) answer.has_text = true;
  if (request_.endpoint == Endpoint::kChat) {
    Json json = chat_token(logprobs->chosen, first);
    json["top_logprobs"] = Json::array();
    for (const TokenLogprob& top : logprobs->top)
      json["top_logprobs"].push_back(chat_token(top, first));
    if (answer.json.is_null()) answer.json = {{"content", Json::array()}, {"refusal", nullptr}};
    answer.json["content"].push_back(std::move(json));
    return;
  }
  if (answer.json.is_null()) {
    answer.json = {{"tokens", Json::array()},
                   {"token_logprobs", Json::array()},
                   {"top_logprobs", Json::array()},
                   {"text_offset", Json::array()}};
  }
  const std::string text = spelled(token, first);
  answer.json["tokens"].push_back(text);
  answer.json["token_logprobs"].push_back(
      logprobs == nullptr ? Json() : Json(finite(logprobs->chosen.logprob)));
  Json top;
  if (logprobs != nullptr) {
    top = Json::object();
    for (const TokenLogprob& l : logprobs->top) top[spelled(l.token, first)] = finite(l.logprob);
    top[text] = finite(logprobs->chosen.logprob);  // OpenAI's: the chosen one is always there
  }
  answer.json["top_logprobs"].push_back(std::move(top));
  answer.json["text_offset"].push_back(answer.offset);
  if (!tokenizer_.is_special(token)) answer.offset += static_cast<int64_t>(chat::num_chars(text));
}

Json Logprobs::take(size_t choice) { return std::exchange(answers_[choice].json, Json()); }

}  // namespace kvant::server
