#include "server/responses.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>

namespace kvant::server {
namespace {

int64_t seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string new_id(Endpoint endpoint) {
  return fmt::format("{}-{:016x}", endpoint == Endpoint::kChat ? "chatcmpl" : "cmpl",
                     random_bits());
}

Json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

}  // namespace

std::vector<Choice> best_choices(std::vector<Choice> choices, size_t samples, size_t kept) {
  if (kept == samples) return choices;
  const auto mean = [](const Choice& c) {
    return c.logprob_sum / static_cast<double>(std::max<int64_t>(c.num_tokens, 1));
  };
  std::vector<Choice> out;
  for (size_t first = 0; first < choices.size(); first += samples) {
    const auto begin = choices.begin() + static_cast<std::ptrdiff_t>(first);
    std::stable_sort(begin, begin + static_cast<std::ptrdiff_t>(samples),
                     [&](const Choice& a, const Choice& b) { return mean(a) > mean(b); });
    std::move(begin, begin + static_cast<std::ptrdiff_t>(kept), std::back_inserter(out));
  }
  return out;
}

Responses::Responses(const ApiRequest& request, std::string model)
    : endpoint_(request.endpoint),
      model_(std::move(model)),
      id_(new_id(request.endpoint)),
      created_(seconds_now()),
      include_usage_(request.include_usage) {}

Json Responses::frame(bool is_piece) const {
  const bool is_chat = endpoint_ == Endpoint::kChat;
  const char* object = !is_chat   ? "text_completion"
                       : is_piece ? "chat.completion.chunk"
                                  : "chat.completion";
  Json out = {{"id", id_},
              {"object", object},
              {"created", created_},
              {"model", model_},
              {"choices", Json::array()}};
  if (is_piece && include_usage_) out["usage"] = nullptr;
  return out;
}

Json Responses::choice_json(size_t index, FinishReason finish, const Json& logprobs) const {
  const Json reason = finish == FinishReason::kRunning ? Json() : Json(finish_reason_name(finish));
  return {{"index", index}, {"logprobs", logprobs}, {"finish_reason", reason}};
}

Json Responses::whole(const std::vector<Choice>& choices, const Usage& usage) const {
  Json out = frame(false);
  for (size_t i = 0; i < choices.size(); ++i) {
    Json choice = choice_json(i, choices[i].finish, choices[i].logprobs);
    if (endpoint_ == Endpoint::kChat) {
      choice["message"] = {{"role", "assistant"}, {"content", choices[i].text}};
    } else {
      choice["text"] = choices[i].text;
    }
    out["choices"].push_back(std::move(choice));
  }
  out["usage"] = usage_json(usage);
  return out;
}

Json Responses::first_piece(size_t choice) const {
  Json out = frame(true);
  Json json = choice_json(choice, FinishReason::kRunning);
  json["delta"] = {{"role", "assistant"}, {"content", ""}};
  out["choices"].push_back(std::move(json));
  return out;
}

Json Responses::piece(size_t index, const Choice& choice) const {
  Json out = frame(true);
  Json json = choice_json(index, choice.finish, choice.logprobs);
  if (endpoint_ == Endpoint::kChat) {
    json["delta"] = choice.text.empty() ? Json::object() : Json{{"content", choice.text}};
  } else {
    json["text"] = choice.text;
  }
  out["choices"].push_back(std::move(json));
  return out;
}

Json Responses::usage_piece(const Usage& usage) const {
  Json out = frame(true);
  out["usage"] = usage_json(usage);
  return out;
}

Json models_json(const ApiModel& model, int64_t created) {
  return {{"object", "list"},
          {"data", Json::array({{{"id", model.name},
                                 {"object", "model"},
                                 {"created", created},
                                 {"owned_by", "kvant"},
                                 {"max_model_len", model.context}}})}};
}

}  // namespace kvant::server
