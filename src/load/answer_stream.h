// AnswerStream: the bytes of a streamed answer and the times at which they came, to what a
// RequestRecord keeps of them. Knows completions and chat completions; knows no network.
//
// A piece of text is an event with text in it: of a completion, of a message, of its reasoning, or
// of a tool call. Events without any (a role, a finish reason, usage) have no time of their own.
#pragma once

#include <string_view>

#include "load/record.h"
#include "load/sse.h"

namespace kvant::load {

enum class KeepText : uint8_t { kNo, kYes };

class AnswerStream {
 public:
  // `record` outlives it.
  AnswerStream(RequestRecord& record, KeepText keep) : record_(record), keep_(keep) {}

  // False once nothing that follows matters: the answer is whole, or is broken.
  bool feed(std::string_view bytes, int64_t now_ns);

  // The bytes have ended. `whole`: as HTTP has it, by length or last chunk, not by the connection's
  // end alone. An answer without [DONE] counts as whole if it had a finish reason.
  void finish(bool whole);

 private:
  bool take_event(std::string_view data, int64_t now_ns);
  void take_text(std::string_view text, int64_t now_ns);
  bool fail(Outcome outcome, std::string detail);

  RequestRecord& record_;
  KeepText keep_;
  EventStream events_;
  bool heard_ = false;  // an event, of whatever kind
  bool done_ = false, finished_ = false, failed_ = false;
};

// The message of an OpenAI error object, {"error": {"message": …}} or {"error": "…"} or
// {"message": …}; else the start of the text itself.
std::string error_message(std::string_view body);

}  // namespace kvant::load
