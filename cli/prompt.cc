#include "cli/prompt.h"

#include <fmt/format.h>

#include "cli/output.h"
#include "cli/terminal.h"
#include "model/tokenizer/unicode.h"

namespace kvant::cli {

Result<std::string> read_prompt(const Settings& settings) {
  const bool text = settings.is_given("prompt"), file = settings.is_given("prompt-file");
  if (text && file)
    return invalid_argument("--prompt and --prompt-file were both given; wanted one of them");
  if (!text && !file)
    return invalid_argument("there is no prompt; wanted --prompt TEXT or --prompt-file FILE");
  return file ? read_file(settings.prompt_file) : settings.prompt;
}

void note_bad_utf8(std::string_view text, std::string_view what) {
  int64_t bad = 0;
  while (!text.empty()) {
    const tokenizer::Utf8Step step = tokenizer::utf8_step(text);
    if (step.unit != tokenizer::Utf8Unit::kCharacter) bad += static_cast<int64_t>(step.length);
    text.remove_prefix(step.length);
  }
  if (bad > 0) note("note     not UTF-8: {} of {}, read as U+FFFD\n", counted(bad, "byte"), what);
}

Result<std::vector<int32_t>> text_tokens(const Tokenizer& tokenizer, std::string_view text) {
  if (tokenizer.vocab_size() == 0) {
    return unsupported(
        "the model came without a tokenizer.json; wanted one, or token ids in place of a text");
  }
  return tokenizer.encode(text, SpecialTokens::kAdd);
}

Result<std::vector<int32_t>> chat_tokens(const Tokenizer& tokenizer,
                                         std::span<const ChatMessage> messages, ChatEnd end,
                                         std::string_view instead) {
  if (tokenizer.chat_template().empty()) {
    return unsupported(
        fmt::format("the model has no chat template; wanted a chat model, or {}", instead));
  }
  const std::string_view bos = tokenizer.bos() ? tokenizer.piece(*tokenizer.bos()) : "";
  const std::string_view eos = tokenizer.eos() ? tokenizer.piece(*tokenizer.eos()) : "";
  KVANT_ASSIGN(const std::string text, render_chat(tokenizer.chat_template(), messages,
                                                   end == ChatEnd::kOpenForAnswer, bos, eos));
  return tokenizer.encode(text, SpecialTokens::kNone);  // the template writes what it wants itself
}

}  // namespace kvant::cli
