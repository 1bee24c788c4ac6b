// Prompt: from text or messages to the tokens that a model wants.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/settings.h"
#include "model/model.h"

namespace kvant::cli {

// --prompt or --prompt-file; invalid_argument if neither or both are given.
Result<std::string> read_prompt(const Settings& settings);

// A note on stderr where bytes of `text` aren't UTF-8: tokenizers read U+FFFD in their place.
void note_bad_utf8(std::string_view text, std::string_view what);

// The text's tokens, with what the model wants around them. unsupported if the model came without a
// tokenizer.
Result<std::vector<int32_t>> text_tokens(const Tokenizer& tokenizer, std::string_view text);

// How a conversation ends in its template.
enum class ChatEnd : uint8_t { kOpenForAnswer, kClosed };

// The messages in the model's own chat template. unsupported if it came without one; `instead`:
// what to do then.
Result<std::vector<int32_t>> chat_tokens(const Tokenizer& tokenizer,
                                         std::span<const ChatMessage> messages,
                                         ChatEnd end = ChatEnd::kOpenForAnswer,
                                         std::string_view instead = "generate without --chat");

}  // namespace kvant::cli
