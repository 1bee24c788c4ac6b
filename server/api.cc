#include "server/api.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "server/fields.h"

namespace kvant::server {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 32;
constexpr int64_t kMostAnswers = 128;
constexpr int64_t kMostLevels = 64;  // of a body
constexpr size_t kMostStops = 16;
constexpr int64_t kMostLogprobs = 20;

// vLLM's fields: n is the width.
void read_beams(Fields& fields, GenerationRequest& out) {
  bool is_asked = false, streams = false;
  GenerationRequest::Beams beams;
  fields.read("use_beam_search", is_asked);
  fields.read("length_penalty", -10.0, 10.0, beams.length_penalty);
  if (!is_asked) {
    if (fields.member("length_penalty") != nullptr)
      fields.fail("length_penalty", "length_penalty is given without use_beam_search: true");
    return;
  }
  if (fields.member("temperature") == nullptr) out.sampling.temperature = 0;
  fields.read("stream", streams);
  if (streams) {
    fields.fail("use_beam_search",
                "use_beam_search is true in a stream: the beams are known at the end");
  } else if (out.sampling.temperature != 0) {
    fields.fail("use_beam_search",
                fmt::format("use_beam_search is true with a temperature of {}, wanted 0 or none",
                            out.sampling.temperature));
  } else if (out.sampling.repeat_penalty != 1 || !out.stop.empty()) {
    fields.fail("use_beam_search",
                "use_beam_search is true with stop or repetition_penalty, which it doesn't know");
  }
  out.beams = beams;
}

// What both endpoints know of sampling and of the answer's end.
GenerationRequest read_generation(Fields& fields, int64_t max_tokens, int64_t least_tokens) {
  GenerationRequest out;
  out.max_tokens = max_tokens;
  out.sampling.temperature = 1;
  out.sampling.seed = random_bits();  // answers differ from call to call
  int64_t n = 1, top_k = 0, seed = -1;
  fields.read("n", 1, kMostAnswers, n);
  fields.read("max_tokens", least_tokens, kMostTokens, out.max_tokens);
  fields.read("min_tokens", 0, kMostTokens, out.min_tokens);
  fields.read("temperature", 0.0, 100.0, out.sampling.temperature);
  fields.read("top_p", std::numeric_limits<double>::denorm_min(), 1.0, out.sampling.top_p);
  fields.read("min_p", 0.0, std::nextafter(1.0, 0.0), out.sampling.min_p);
  fields.read("top_k", -1, std::numeric_limits<int>::max(), top_k);
  fields.read("repetition_penalty", 1e-3, 10.0, out.sampling.repeat_penalty);
  fields.read("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(),
              seed);
  fields.read("ignore_eos", out.ignore_end);
  fields.read("cache_salt", out.cache_salt);
  if (fields.member("seed") != nullptr) out.sampling.seed = static_cast<uint64_t>(seed);
  if (top_k > 0) out.sampling.top_k = static_cast<int>(top_k);
  out.num_samples = static_cast<int>(n);
  if (const Json* stop = fields.member("stop")) {
    const Json list = stop->is_array() ? *stop : Json::array({*stop});
    const bool are_texts = std::all_of(list.begin(), list.end(), [](const Json& text) {
      return text.is_string() && !text.get_ref<const std::string&>().empty();
    });
    if (!are_texts || list.size() > kMostStops) {
      fields.fail("stop",
                  fmt::format("stop is {}, wanted a text or up to {} texts that aren't empty",
                              shown(*stop), kMostStops));
    } else {
      out.stop = list.get<std::vector<std::string>>();
    }
  }
  read_beams(fields, out);
  fields.only("frequency_penalty", 0, "only repetition_penalty is served");
  fields.only("presence_penalty", 0, "only repetition_penalty is served");
  fields.only("logit_bias", Json::object(), "logits can't be biased here");
  std::string user;
  fields.read("user", user);
  return out;
}

void read_stream(Fields& fields, ApiRequest& out) {
  fields.read("stream", out.stream);
  const Json* options = fields.member("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) {
    return fields.fail("stream_options",
                       fmt::format("stream_options is {}, wanted an object", shown(*options)));
  }
  Fields inner(*options);
  inner.read("include_usage", out.include_usage);
  if (const auto error = inner.error())
    return fields.fail("stream_options", "stream_options: " + error->message);
  if (!out.stream) fields.fail("stream_options", "stream_options is given without stream: true");
}

std::optional<ApiError> check_model(Fields& fields, const ApiModel& model) {
  std::string name = model.name;
  fields.read("model", name);
  if (fields.failed() || name == model.name) return std::nullopt;
  return ApiError{.http = 404,
                  .message = fmt::format("the model {} isn't served here, {} is", shown(Json(name)),
                                         model.name),
                  .param = "model",
                  .code = "model_not_found"};
}

bool is_id_list(const Json& value) {
  return value.is_array() && !value.empty() &&
         std::all_of(value.begin(), value.end(), [](const Json& id) {
           const std::optional<int64_t> number = integer_of(id);
           return number && *number >= 0 && *number <= std::numeric_limits<int32_t>::max();
         });
}

// REQUIRES that it is a list of ids. Fails where the vocabulary lacks one.
std::vector<int32_t> read_ids(Fields& fields, std::string_view name, const Json& list,
                              const ApiModel& model) {
  std::vector<int32_t> out;
  const int vocab = model.tokenizer.vocab_size();
  for (const Json& item : list) {
    const auto id = static_cast<int32_t>(*integer_of(item));
    if (id < vocab) {
      out.push_back(id);
      continue;
    }
    fields.fail(name,
                fmt::format("{} has the token id {} in it, wanted 0 to {}", name, id, vocab - 1));
    return {};
  }
  return out;
}

struct Prompt {
  std::vector<int32_t> tokens;
  std::string text;
};

// An empty text is the beginning of a document, as OpenAI has it, also where the tokenizer adds
// nothing.
std::vector<int32_t> tokens_of(const std::string& text, const Tokenizer& tokenizer) {
  std::vector<int32_t> out = tokenizer.encode(text, SpecialTokens::kAdd);
  const std::optional<int32_t> begin = tokenizer.bos() ? tokenizer.bos() : tokenizer.eos();
  if (out.empty() && begin) out.push_back(*begin);
  return out;
}

// A text, ids, or a list of either.
std::vector<Prompt> read_prompts(Fields& fields, const ApiModel& model) {
  constexpr std::string_view kWanted = "wanted a text, a list of token ids, or a list of either";
  std::vector<Prompt> out;
  const Json* prompt = fields.member("prompt");
  if (prompt == nullptr) {
    fields.fail("prompt", fmt::format("prompt is missing, {}", kWanted));
    return out;
  }
  const bool is_one = prompt->is_string() || is_id_list(*prompt);
  const Json list = is_one ? Json::array({*prompt}) : *prompt;
  if (!list.is_array() || list.empty()) {
    fields.fail("prompt", fmt::format("prompt is {}, {}", shown(*prompt), kWanted));
    return out;
  }
  for (const Json& item : list) {
    Prompt one;
    if (item.is_string()) {
      one.text = item.get<std::string>();
      one.tokens = tokens_of(one.text, model.tokenizer);
    } else if (is_id_list(item)) {
      one.tokens = read_ids(fields, "prompt", item, model);
      one.text = model.tokenizer.decode(one.tokens, true);
    } else {
      fields.fail("prompt", fmt::format("prompt has {} in it, {}", shown(item), kWanted));
      return out;
    }
    out.push_back(std::move(one));
  }
  return out;
}

// A message's content is a text, a list of parts that are texts, or null.
std::optional<std::string> content_of(const Json& content) {
  if (content.is_null()) return "";
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return std::nullopt;
  std::string out;
  for (const Json& part : content) {
    const bool is_text = part.is_object() && part.contains("type") && part["type"] == "text" &&
                         part.contains("text") && part["text"].is_string();
    if (!is_text) return std::nullopt;
    out += (out.empty() ? "" : "\n") + part["text"].get<std::string>();
  }
  return out;
}

std::optional<ChatMessage> message_of(const Json& message) {
  if (!message.is_object() || !message.contains("role") || !message["role"].is_string())
    return std::nullopt;
  ChatMessage out;
  out.role = message["role"].get<std::string>();
  const std::optional<std::string> content = content_of(message.value("content", Json()));
  if (!content) return std::nullopt;
  out.content = *content;
  Json extra = message;
  extra.erase("role");
  extra.erase("content");
  if (!extra.empty()) out.extra_json = extra.dump();
  return out;
}

// Messages in the model's template, as tokens.
std::vector<int32_t> read_messages(Fields& fields, const ApiModel& model, bool open) {
  const Json* list = fields.member("messages");
  const Json* tools = fields.member("tools");
  const Json* variables = fields.member("chat_template_kwargs");
  if (list == nullptr || !list->is_array() || list->empty()) {
    fields.fail("messages", fmt::format("messages is {}, wanted a list of messages",
                                        list == nullptr ? "missing" : shown(*list)));
    return {};
  }
  std::vector<ChatMessage> messages;
  for (const Json& item : *list) {
    std::optional<ChatMessage> message = message_of(item);
    if (!message) {
      fields.fail("messages",
                  fmt::format("messages[{}] is no message: wanted an object with a role "
                              "and a content that is a text or parts of type text",
                              messages.size()));
      return {};
    }
    messages.push_back(std::move(*message));
  }
  const bool are_tools =
      tools == nullptr || (tools->is_array() && std::ranges::all_of(*tools, [](const Json& tool) {
                             return tool.is_object();
                           }));
  if (!are_tools)
    fields.fail("tools", fmt::format("tools is {}, wanted a list of objects", shown(*tools)));
  if (variables != nullptr && !variables->is_object()) {
    fields.fail("chat_template_kwargs",
                fmt::format("chat_template_kwargs is {}, wanted an object", shown(*variables)));
  }
  if (model.tokenizer.chat_template().empty())
    fields.fail("messages", "the model has no chat template: it takes /v1/completions only");
  if (fields.failed()) return {};
  const Tokenizer& t = model.tokenizer;
  const std::string tools_json = tools == nullptr ? "" : tools->dump();
  const std::string variables_json = variables == nullptr ? "" : variables->dump();
  const Result<std::string> text =
      render_chat(t.chat_template(), {.messages = messages,
                                      .add_generation_prompt = open,
                                      .bos_token = t.bos() ? t.piece(*t.bos()) : std::string_view(),
                                      .eos_token = t.eos() ? t.piece(*t.eos()) : std::string_view(),
                                      .tools_json = tools_json,
                                      .variables_json = variables_json});
  if (!text.ok()) {
    fields.fail("messages", text.status().message());
    return {};
  }
  return t.encode(*text, SpecialTokens::kNone);
}

// Of brackets in one another, outside of texts.
int64_t depth_of(std::string_view json) {
  int64_t depth = 0, most = 0;
  bool is_text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (is_text) {
      i += c == '\\' ? 1 : 0;
      is_text = c != '"';
    } else if (c == '"') {
      is_text = true;
    } else if (c == '[' || c == '{') {
      most = std::max(most, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return most;
}

template <typename T>
Parsed<T> refused(ApiError error) {
  return {.value = {}, .error = std::move(error)};
}

}  // namespace

uint64_t random_bits() {
  static std::random_device device;
  return uint64_t{device()} << 32 | device();
}

Json error_json(const ApiError& error) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? Json() : Json(text);
  };
  return {{"error",
           {{"message", error.message},
            {"type", error.type},
            {"param", text_or_null(error.param)},
            {"code", text_or_null(error.code)}}}};
}

ApiError error_of(const Status& status) {
  switch (status.code()) {
    case Code::kInvalidArgument:
    case Code::kUnsupported:
    case Code::kExhausted:
    case Code::kNotFound:
      return {.http = 400, .message = status.message()};
    default:
      return {.http = 500, .message = status.message(), .type = "server_error"};
  }
}

Parsed<Json> parse_body(std::string_view body) {
  // What goes over a value copies and prints it level by level.
  if (depth_of(body) > kMostLevels) {
    return refused<Json>({.message = fmt::format("the body nests {} levels deep, wanted at most {}",
                                                 depth_of(body), kMostLevels)});
  }
  try {
    Json parsed = Json::parse(body);
    if (parsed.is_object()) return {.value = std::move(parsed)};
    return refused<Json>(
        {.message = fmt::format("the body is {}, wanted an object", shown(parsed))});
  } catch (const Json::parse_error& e) {
    return refused<Json>(
        {.message = fmt::format("the body isn't JSON: byte {} of {}", e.byte, body.size())});
  } catch (const Json::exception&) {  // 1e400
    return refused<Json>({.message = "the body has a number in it that no double holds"});
  }
}

Parsed<ApiRequest> parse_completions(const Json& body, const ApiModel& model) {
  constexpr int64_t kDefaultTokens = 16;  // OpenAI's
  Fields fields(body);
  ApiRequest out;
  const auto wrong_model = check_model(fields, model);
  GenerationRequest generation = read_generation(fields, kDefaultTokens, 0);
  read_stream(fields, out);
  bool echo = false;
  fields.read("echo", echo);
  fields.only("suffix", "", "text can't be inserted before a suffix here");
  int64_t logprobs = -1;
  fields.read("logprobs", 0, kMostLogprobs, logprobs);
  if (logprobs >= 0) generation.logprobs = static_cast<int>(logprobs);
  if (echo) generation.prompt_logprobs = generation.logprobs;
  if (generation.max_tokens == 0) {  // the prompt is read, and scored where that is asked for
    if (!echo) fields.fail("max_tokens", "max_tokens is 0, wanted at least 1, or echo");
    if (generation.beams)
      fields.fail("max_tokens", "max_tokens is 0, wanted at least 1 with use_beam_search");
    if (!generation.prompt_logprobs) generation.prompt_logprobs = 0;
  }
  out.echo = echo;
  out.has_logprobs = generation.logprobs.has_value();
  int64_t best_of = generation.num_samples;
  fields.read("best_of", 1, kMostAnswers, best_of);
  out.num_answers = generation.num_samples;
  if (best_of < out.num_answers) {
    fields.fail("best_of", fmt::format("best_of is {}, wanted at least n, which is {}", best_of,
                                       out.num_answers));
  } else if (best_of > out.num_answers && generation.beams) {
    fields.fail("best_of", fmt::format("best_of is {} with use_beam_search, wanted n, which is {}",
                                       best_of, out.num_answers));
  } else if (best_of > out.num_answers && out.stream) {
    fields.fail("best_of", fmt::format("best_of is {} in a stream, wanted n, which is {}: the best "
                                       "are known at the end",
                                       best_of, out.num_answers));
  } else if (best_of > out.num_answers) {
    generation.num_samples = static_cast<int>(best_of);
    if (!generation.logprobs) generation.logprobs = 0;
  }
  const std::vector<Prompt> prompts = read_prompts(fields, model);
  if (auto error = fields.error()) return refused<ApiRequest>(std::move(*error));
  if (wrong_model) return refused<ApiRequest>(*wrong_model);
  for (const Prompt& prompt : prompts) {
    out.generations.push_back(generation);
    out.generations.back().prompt = prompt.tokens;
    out.echoes.push_back(echo ? prompt.text : "");
  }
  return {.value = std::move(out)};
}

Parsed<ApiRequest> parse_chat(const Json& body, const ApiModel& model) {
  Fields fields(body);
  ApiRequest out;
  out.endpoint = Endpoint::kChat;
  const auto wrong_model = check_model(fields, model);
  GenerationRequest generation = read_generation(fields, 0, 1);
  fields.read("max_completion_tokens", 1, kMostTokens, generation.max_tokens);
  read_stream(fields, out);
  int64_t top_logprobs = 0;
  fields.read("logprobs", out.has_logprobs);
  fields.read("top_logprobs", 0, kMostLogprobs, top_logprobs);
  if (top_logprobs > 0 && !out.has_logprobs)
    fields.fail("top_logprobs", "top_logprobs is given without logprobs: true");
  if (out.has_logprobs) generation.logprobs = static_cast<int>(top_logprobs);
  fields.only("response_format", Json{{"type", "text"}}, "only text is served");
  fields.only("tool_choice", "auto", "the model chooses; only auto is served");
  fields.only("parallel_tool_calls", true, "the model chooses");
  generation.prompt = read_messages(fields, model, true);
  if (auto error = fields.error()) return refused<ApiRequest>(std::move(*error));
  if (wrong_model) return refused<ApiRequest>(*wrong_model);
  if (generation.max_tokens == 0) {  // as many as there is room for
    const auto prompt = static_cast<int64_t>(generation.prompt.size());
    generation.max_tokens = std::max<int64_t>(1, model.context - prompt);
  }
  out.num_answers = generation.num_samples;
  out.generations.push_back(std::move(generation));
  out.echoes.emplace_back();
  return {.value = std::move(out)};
}

Parsed<TokenizeRequest> parse_tokenize(const Json& body, const ApiModel& model) {
  Fields fields(body);
  const auto wrong_model = check_model(fields, model);
  TokenizeRequest out;
  bool special = true, open = true;
  fields.read("add_special_tokens", special);
  if (body.contains("messages")) {
    fields.read("add_generation_prompt", open);
    out.tokens = read_messages(fields, model, open);
  } else {
    std::string prompt;
    if (fields.member("prompt") == nullptr)
      fields.fail("prompt", "prompt is missing, wanted a text, or messages");
    fields.read("prompt", prompt);
    out.tokens =
        model.tokenizer.encode(prompt, special ? SpecialTokens::kAdd : SpecialTokens::kNone);
  }
  if (auto error = fields.error()) return refused<TokenizeRequest>(std::move(*error));
  if (wrong_model) return refused<TokenizeRequest>(*wrong_model);
  return {.value = std::move(out)};
}

Parsed<TokenizeRequest> parse_detokenize(const Json& body, const ApiModel& model) {
  Fields fields(body);
  const auto wrong_model = check_model(fields, model);
  TokenizeRequest out;
  const Json* tokens = fields.member("tokens");
  if (tokens == nullptr || !(tokens->is_array() && (tokens->empty() || is_id_list(*tokens)))) {
    fields.fail("tokens", fmt::format("tokens is {}, wanted a list of token ids",
                                      tokens == nullptr ? "missing" : shown(*tokens)));
  } else {
    out.tokens = read_ids(fields, "tokens", *tokens, model);
  }
  if (auto error = fields.error()) return refused<TokenizeRequest>(std::move(*error));
  if (wrong_model) return refused<TokenizeRequest>(*wrong_model);
  return {.value = std::move(out)};
}

}  // namespace kvant::server
