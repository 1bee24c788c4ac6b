#include "load/answer_stream.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace kvant::load {
namespace {

using Json = nlohmann::json;

Json parsed(std::string_view text) { return Json::parse(text, nullptr, false); }

// The member of an object, or null: nothing here may throw.
const Json& member(const Json& object, const char* key) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto at = object.find(key);
  return at == object.end() ? kNull : *at;
}

std::string_view string_of(const Json& value) {
  return value.is_string() ? std::string_view(value.get_ref<const std::string&>())
                           : std::string_view();
}

int64_t count_of(const Json& value) {
  return value.is_number_integer() ? value.get<int64_t>() : -1;
}

// On one line, and not too long for a message.
std::string shortened(std::string_view text) {
  constexpr size_t kLongest = 200;
  std::string out(text.substr(0, kLongest));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return out;
}

std::string message_in(const Json& error) {
  if (error.is_string()) return shortened(string_of(error));
  const std::string_view message = string_of(member(error, "message"));
  return shortened(message.empty() ? error.dump(-1, ' ', true, Json::error_handler_t::replace)
                                   : message);
}

Usage usage_of(const Json& json) {
  return {
      .prompt_tokens = count_of(member(json, "prompt_tokens")),
      .completion_tokens = count_of(member(json, "completion_tokens")),
      .cached_tokens = count_of(member(member(json, "prompt_tokens_details"), "cached_tokens"))};
}

}  // namespace

std::string error_message(std::string_view body) {
  const Json json = parsed(body);
  if (!json.is_object()) return shortened(body);
  return message_in(json.contains("error") ? json["error"] : json);
}

bool AnswerStream::fail(Outcome outcome, std::string detail) {
  record_.outcome = outcome;
  record_.detail = std::move(detail);
  failed_ = true;
  return false;
}

void AnswerStream::take_text(std::string_view text, int64_t now_ns) {
  if (record_.first_ns < 0) {
    record_.first_ns = now_ns;
  } else {
    record_.gaps_ns.push_back(now_ns - record_.last_ns);
  }
  record_.last_ns = now_ns;
  if (keep_ == KeepText::kYes) record_.text += text;
}

bool AnswerStream::take_event(std::string_view data, int64_t now_ns) {
  heard_ = true;
  if (data == "[DONE]") {
    done_ = true;
    return false;
  }
  const Json event = parsed(data);
  if (!event.is_object())
    return fail(Outcome::kMalformed, fmt::format("an event is no JSON: {}", shortened(data)));
  if (const Json& error = member(event, "error"); !error.is_null())
    return fail(Outcome::kErrorEvent, message_in(error));
  const Json& choices = member(event, "choices");
  if (const Json& usage = member(event, "usage"); usage.is_object()) {
    record_.usage = usage_of(usage);
  } else if (!choices.is_array()) {
    return fail(Outcome::kMalformed,
                fmt::format("an event has neither choices nor usage: {}", shortened(data)));
  }
  if (!choices.is_array()) return true;
  std::string text;
  for (const Json& choice : choices) {
    text += string_of(member(choice, "text"));
    const Json& delta = member(choice, "delta");
    for (const char* key : {"content", "reasoning_content", "reasoning"})
      text += string_of(member(delta, key));
    if (const Json& calls = member(delta, "tool_calls"); calls.is_array()) {
      for (const Json& call : calls) {
        const Json& function = member(call, "function");
        text += string_of(member(function, "name"));
        text += string_of(member(function, "arguments"));
      }
    }
    finished_ = finished_ || member(choice, "finish_reason").is_string();
  }
  if (!text.empty()) take_text(text, now_ns);
  return true;
}

bool AnswerStream::feed(std::string_view bytes, int64_t now_ns) {
  const Status status =
      events_.feed(bytes, [&](std::string_view data) { return take_event(data, now_ns); });
  if (!status.ok()) return fail(Outcome::kMalformed, status.message());
  return !done_ && !failed_;
}

void AnswerStream::finish(bool whole) {
  if (failed_) return;
  if (whole && !heard_) {
    fail(Outcome::kMalformed, "the answer is no event stream");
    return;
  }
  if (!done_ && !(finished_ && whole)) {
    fail(Outcome::kEarlyClose, record_.first_ns < 0 ? "the answer ended before its first token"
                                                    : "the answer ended before its last token");
    return;
  }
  record_.outcome = Outcome::kSuccess;
  const int64_t tokens = record_.usage ? record_.usage->completion_tokens : -1;
  if (tokens > record_.max_tokens ||
      (record_.exact_tokens && tokens >= 0 && tokens < record_.max_tokens)) {
    fail(Outcome::kWrongCount,
         fmt::format("the answer has {} tokens, wanted {}{}", tokens,
                     record_.exact_tokens ? "" : "at most ", record_.max_tokens));
  }
}

}  // namespace kvant::load
