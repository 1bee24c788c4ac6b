#include "load/server.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/tokenizer.h"

namespace kvant::load {
namespace {

using Json = nlohmann::json;

constexpr double kPatience = 30;  // seconds, for what isn't a completion

// A call's answer as JSON; null where the call, its status or its body isn't fine.
Json ask_json(const Endpoint& server, std::string_view path, const Json& body, double timeout_s) {
  const std::string sent =
      body.is_null() ? "" : body.dump(-1, ' ', false, Json::error_handler_t::replace);
  const Result<HttpAnswer> answer = ask(server, path, sent, timeout_s);
  if (!answer.ok() || answer->status != 200) return nullptr;
  Json json = Json::parse(answer->body, nullptr, false);
  return json.is_object() ? json : Json();
}

std::string string_at(const Json& json, const char* key) {
  const auto at = json.is_object() ? json.find(key) : json.end();
  return json.is_object() && at != json.end() && at->is_string() ? at->get<std::string>() : "";
}

class LocalCounter final : public TokenCounter {
 public:
  LocalCounter(const Tokenizer& tokenizer, std::string path, Api api)
      : tokenizer_(tokenizer), path_(std::move(path)), api_(api) {}

  Result<int64_t> count(const std::string& prompt) override {
    if (api_ == Api::kCompletions || tokenizer_.chat_template().empty())
      return size(prompt, SpecialTokens::kAdd);
    const ChatMessage message{.role = "user", .content = prompt};
    const auto spelled = [&](std::optional<int32_t> id) {
      return id ? std::string(tokenizer_.piece(*id)) : std::string();
    };
    const std::string bos = spelled(tokenizer_.bos());
    KVANT_ASSIGN(const std::string text, render_chat(tokenizer_.chat_template(), {&message, 1},
                                                     true, bos, spelled(tokenizer_.eos())));
    // A template may write BOS itself; it isn't added twice.
    const bool begins = !bos.empty() && text.starts_with(bos);
    return size(text, begins ? SpecialTokens::kNone : SpecialTokens::kAdd);
  }
  std::string name() const override { return fmt::format("the tokenizer of {}", path_); }

 private:
  Result<int64_t> size(const std::string& text, SpecialTokens special) const {
    return static_cast<int64_t>(tokenizer_.encode(text, special).size());
  }

  const Tokenizer& tokenizer_;
  std::string path_;
  Api api_;
};

enum class Asking : uint8_t { kPrompt, kContent, kUsage };

class ServerCounter final : public TokenCounter {
 public:
  ServerCounter(const Endpoint& server, std::string model, Api api, Asking asking, double timeout_s)
      : server_(server),
        model_(std::move(model)),
        api_(api),
        asking_(asking),
        timeout_s_(timeout_s) {}

  Result<int64_t> count(const std::string& prompt) override {
    const Json answer = ask_json(server_, path(), question(prompt), timeout_s_);
    const int64_t tokens = asking_ == Asking::kUsage ? from_usage(answer) : from_tokens(answer);
    if (tokens >= 0) return tokens;
    return io_error(fmt::format("{} of {} doesn't tell how many tokens a text has", path(),
                                server_.url.text()));
  }
  std::string name() const override { return fmt::format("{} of {}", path(), server_.url.text()); }

  // What the server says where it refuses to be asked; OK where it only doesn't tell.
  Status refusal() const {
    KVANT_ASSIGN(const HttpAnswer answer, ask(server_, path(), question("In").dump(), timeout_s_));
    if (answer.status == 200) return {};
    return io_error(fmt::format("{} answers {} to a request for {}: {}", server_.url.text(),
                                answer.status, model_, error_message(answer.body)));
  }

 private:
  std::string path() const {
    return asking_ == Asking::kUsage ? std::string(api_path(api_)) : "/tokenize";
  }

  Json question(const std::string& prompt) const {
    if (asking_ == Asking::kPrompt)
      return {{"model", model_}, {"prompt", prompt}, {"add_special_tokens", true}};
    if (asking_ == Asking::kContent) return {{"content", prompt}, {"add_special", true}};
    Json body = {{"model", model_}, {"max_tokens", 1}, {"temperature", 0}};
    if (api_ == Api::kChat) {
      body["messages"] = Json::array({{{"role", "user"}, {"content", prompt}}});
    } else {
      body["prompt"] = prompt;
    }
    return body;
  }

  static int64_t from_tokens(const Json& answer) {
    if (!answer.is_object()) return -1;
    if (answer.contains("count") && answer["count"].is_number_integer()) return answer["count"];
    const bool listed =
        answer.contains("tokens") && answer["tokens"].is_array() && !answer["tokens"].empty();
    return listed ? static_cast<int64_t>(answer["tokens"].size()) : -1;
  }

  static int64_t from_usage(const Json& answer) {
    if (!answer.is_object() || !answer.contains("usage")) return -1;
    const Json& usage = answer["usage"];
    if (!usage.is_object() || !usage.contains("prompt_tokens")) return -1;
    return usage["prompt_tokens"].is_number_integer() ? usage["prompt_tokens"].get<int64_t>() : -1;
  }

  Endpoint server_;
  std::string model_;
  Api api_;
  Asking asking_;
  double timeout_s_;
};

}  // namespace

Result<ServerFacts> ask_facts(const Endpoint& server) {
  KVANT_ASSIGN(const HttpAnswer models, ask(server, "/v1/models", "", kPatience));
  ServerFacts facts;
  facts.software = models.server;
  if (models.status == 401 || models.status == 403) {
    return invalid_argument(
        fmt::format("{} answers {} to /v1/models; wanted --api-key-file with a key that it takes",
                    server.url.text(), models.status));
  }
  const Json list = Json::parse(models.body, nullptr, false);
  if (list.is_object() && list.contains("data") && list["data"].is_array()) {
    for (const Json& model : list["data"]) {
      if (const std::string id = string_at(model, "id"); !id.empty()) facts.models.push_back(id);
    }
  }
  facts.version = string_at(ask_json(server, "/version", nullptr, kPatience), "version");
  if (facts.version.empty())
    facts.version = string_at(ask_json(server, "/props", nullptr, kPatience), "build_info");
  return facts;
}

Result<std::string> choose_model(const ServerFacts& facts, const std::string& wanted) {
  if (wanted.empty() && facts.models.size() == 1) return facts.models[0];
  if (wanted.empty()) {
    return invalid_argument(
        facts.models.empty()
            ? "the server lists no models; wanted --model NAME"
            : fmt::format("the server lists {} models; wanted --model with one of {}",
                          facts.models.size(), fmt::join(facts.models, ", ")));
  }
  // A server may take names that it doesn't list; whether it does is its first answer's to say.
  return wanted;
}

std::optional<int64_t> parse_preemptions(std::string_view metrics) {
  constexpr std::string_view kEnding = "preemptions_total";
  std::optional<int64_t> sum;
  for (size_t at = 0; at < metrics.size();) {
    const size_t end = std::min(metrics.find('\n', at), metrics.size());
    const std::string_view line = metrics.substr(at, end - at);
    at = end + 1;
    if (line.starts_with('#')) continue;
    if (!line.substr(0, line.find_first_of("{ \t")).ends_with(kEnding)) continue;
    const size_t labels = line.rfind('}');
    const size_t behind_name = labels == line.npos ? line.find_first_of(" \t") : labels + 1;
    std::string_view value = line.substr(std::min(behind_name, line.size()));
    value.remove_prefix(std::min(value.find_first_not_of(" \t"), value.size()));
    value = value.substr(0, value.find_first_of(" \t"));  // a time may follow
    double number = 0;
    const auto [last, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || !std::isfinite(number) || number < 0 || number > 1e15) continue;
    sum = sum.value_or(0) + static_cast<int64_t>(number);
  }
  return sum;
}

std::optional<int64_t> ask_preemptions(const Endpoint& server) {
  const Result<HttpAnswer> answer = ask(server, "/metrics", "", kPatience);
  if (!answer.ok() || answer->status != 200) return std::nullopt;
  return parse_preemptions(answer->body);
}

std::unique_ptr<TokenCounter> tokenizer_counter(const Tokenizer& tokenizer, std::string path,
                                                Api api) {
  return std::make_unique<LocalCounter>(tokenizer, std::move(path), api);
}

Result<std::unique_ptr<TokenCounter>> server_counter(const Endpoint& server, std::string model,
                                                     Api api, double timeout_s) {
  // A chat's template is the server's: only an answer's usage tells what it adds.
  for (Asking asking : {Asking::kPrompt, Asking::kContent, Asking::kUsage}) {
    if (api == Api::kChat && asking != Asking::kUsage) continue;
    auto counter = std::make_unique<ServerCounter>(server, model, api, asking, timeout_s);
    if (counter->count("In").ok()) return std::unique_ptr<TokenCounter>(std::move(counter));
  }
  const ServerCounter last(server, model, api, Asking::kUsage, timeout_s);
  KVANT_TRY(last.refusal());
  return unsupported(fmt::format(
      "{} tells by neither /tokenize nor usage how many tokens a text has, so that prompts of an "
      "exact length can't be made; give --tokenizer MODEL or --prompts FILE",
      server.url.text()));
}

}  // namespace kvant::load
