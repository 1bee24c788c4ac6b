#include "server/routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "server/openapi.h"
#include "server/responses.h"

namespace kvant::server {
namespace {

constexpr Path kPaths[] = {
    {"/openapi.json", "GET"},    {"/health", "GET"},
    {"/ready", "GET"},           {"/version", "GET"},
    {"/metrics", "GET"},         {"/v1/models", "GET"},
    {"/v1/completions", "POST"}, {"/tokenize", "POST"},
    {"/detokenize", "POST"},     {"/v1/chat/completions", "POST"},
};

// Takes as long whatever the two have in common.
bool equal_in_constant_time(std::string_view key, std::string_view given) {
  unsigned difference = key.size() == given.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char wanted = key.empty() ? '\0' : key[i % key.size()];
    difference |= static_cast<unsigned>(static_cast<unsigned char>(given[i] ^ wanted));
  }
  return difference == 0;
}

std::optional<ApiError> check_key(std::string_view authorization,
                                  const std::vector<std::string>& keys) {
  constexpr std::string_view kBearer = "Bearer ";
  const bool has_key = authorization.starts_with(kBearer);
  if (has_key) authorization.remove_prefix(kBearer.size());
  bool known = false;
  for (const std::string& key : keys) known |= equal_in_constant_time(key, authorization);
  if (has_key && known) return std::nullopt;
  return ApiError{.http = 401,
                  .message = has_key ? "the API key isn't known"
                                     : "an API key is wanted: Authorization: Bearer KEY",
                  .type = "authentication_error",
                  .code = "invalid_api_key"};
}

// With the model's own bounds.
std::string openapi_of(const ApiModel& model) {
  Json document = Json::parse(openapi_text());
  document["components"]["schemas"]["TokenId"]["maximum"] = model.tokenizer.vocab_size() - 1;
  return document.dump();
}

}  // namespace

std::span<const Path> all_paths() { return kPaths; }

std::string_view allowed_method(std::string_view path) {
  const auto found = std::ranges::find(kPaths, path, &Path::path);
  return found == std::end(kPaths) ? std::string_view() : found->method;
}

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Plain plain_error(const ApiError& error) {
  return {.code = error.http, .body = text_of(error_json(error))};
}

Routes::Routes(const ApiModel& model, const Metrics& metrics)
    : model_(model),
      metrics_(metrics),
      started_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      openapi_(openapi_of(model)) {}

std::optional<ApiError> Routes::check(std::string_view method, std::string_view path,
                                      std::string_view authorization,
                                      const std::vector<std::string>& keys) const {
  if (!keys.empty() && path.starts_with("/v1")) {
    if (auto error = check_key(authorization, keys)) return error;
  }
  const std::string_view allowed = allowed_method(path);
  if (allowed.empty()) {
    return ApiError{
        .http = 404, .message = fmt::format("there is no {} here", path), .code = "not_found"};
  }
  if (allowed == method) return std::nullopt;
  return ApiError{.http = 405,
                  .message = fmt::format("{} takes {}, not {}", path, allowed, method),
                  .code = "method_not_allowed"};
}

Plain Routes::get(std::string_view path, bool is_stopping) const {
  if (path == "/health") return {.body = text_of({{"status", "ok"}})};
  if (path == "/ready" && is_stopping)
    return {.code = 503, .body = text_of({{"status", "stopping"}})};
  if (path == "/ready") return {.body = text_of({{"status", "ready"}})};
  if (path == "/version") return {.body = text_of({{"version", KVANT_VERSION}})};
  if (path == "/openapi.json") return {.body = openapi_};
  if (path == "/v1/models") return {.body = text_of(models_json(model_, started_))};
  return {.body = metrics_.text(), .type = "text/plain; version=0.0.4"};
}

Plain Routes::tokens(std::string_view path, const Json& body) const {
  const bool to_tokens = path == "/tokenize";
  const auto parsed = to_tokens ? parse_tokenize(body, model_) : parse_detokenize(body, model_);
  if (parsed.error) return plain_error(*parsed.error);
  const std::vector<int32_t>& tokens = parsed.value.tokens;
  if (!to_tokens) return {.body = text_of({{"prompt", model_.tokenizer.decode(tokens, false)}})};
  return {.body = text_of(
              {{"tokens", tokens}, {"count", tokens.size()}, {"max_model_len", model_.context}})};
}

}  // namespace kvant::server
