// Tokenizer: text to token ids and back, for the tokenizers of the supported model families.
//
// Two algorithms (byte-level BPE, and SentencePiece BPE/unigram with byte fallback) under the
// normalizers, pre-tokenizers, added and special tokens that tokenizer.json or a GGUF file
// describe. Immutable after loading; any thread may use it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/status.h"

namespace kvant {

class GgufFile;

enum class SpecialTokens : uint8_t {
  kAdd,  // BOS/EOS as the tokenizer's template asks for
  kNone,
};

class Tokenizer {
 public:
  // From tokenizer.json (with tokenizer_config.json beside it if there is one), or from a GGUF
  // file's metadata.
  static Result<std::unique_ptr<Tokenizer>> load(const std::filesystem::path& directory);
  static Result<std::unique_ptr<Tokenizer>> load(const GgufFile& gguf);
  virtual ~Tokenizer() = default;

  // Bytes that aren't UTF-8 are treated as the reference tokenizer treats their replacement
  // (U+FFFD). Text that spells a special token becomes that token.
  virtual std::vector<int32_t> encode(std::string_view text, SpecialTokens special) const = 0;
  // The text of ids; ids out of range are left out. Special tokens are left out if `skip_special`.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special) const = 0;
  // The bytes that one token of a stream adds, which may end or begin inside a character; `first`
  // for the stream's first token, whose space some tokenizers drop. Empty for an id out of range.
  // What StreamDecoder is made of.
  virtual std::string token_bytes(int32_t id, bool first) const = 0;
  // The token as stored ("Ġthe", "▁the", "<0x0A>"); empty for an id out of range.
  virtual std::string_view piece(int32_t id) const = 0;
  virtual bool is_special(int32_t id) const = 0;

  virtual int vocab_size() const = 0;
  virtual std::optional<int32_t> bos() const = 0;
  virtual std::optional<int32_t> eos() const = 0;
  virtual std::span<const int32_t> end_of_generation() const = 0;  // EOS, end of turn, …
  virtual std::string_view chat_template() const = 0;              // Jinja source; empty: none
  // "byte-level BPE, smollm pre-tokenizer": for `inspect`.
  virtual std::string description() const = 0;
};

// Decodes a stream of tokens so that no character is ever cut: bytes of an unfinished character are
// held back; flush() turns what is left into one replacement mark. What it gives out is always
// valid UTF-8, and is decode()'s answer for all ids, except that SentencePiece's decode() marks
// every byte of a run that isn't UTF-8, and the stream every ill-formed part.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true);
  std::string push(int32_t id);
  std::string flush();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  bool first_ = true;
  std::string pending_;  // bytes of an unfinished character; at most 3
};

struct ChatMessage {
  std::string role;
  std::string content;
  // Further members as a JSON object ({"tool_calls": […]}, {"name": …}); a "content" in it, which
  // may be a list of parts, replaces the text. Empty: none.
  std::string extra_json = {};
  bool has_content =
      true;  // false: the template sees no content member (a message that only calls tools)
};

struct ChatRequest {
  std::span<const ChatMessage> messages;
  bool add_generation_prompt = false;
  std::string_view bos_token, eos_token;
  std::string_view tools_json =
      {};  // a JSON list of tool descriptions; empty: the template sees none
  std::string_view variables_json =
      {};           // a JSON object of further variables ({"enable_thinking": false})
  int64_t now = 0;  // seconds since 1970 that strftime_now() prints; 0: the clock's
  // Steps that the template may take, each over some bytes; real ones take some thousand. A second
  // or two of a hostile one.
  int64_t max_work = 32'000'000;
};

// Renders a chat template as Transformers' apply_chat_template does. invalid_argument with the
// template's own message where it raises one, and with line and reason where it goes wrong over
// these messages; corrupt with line and construct where it is outside the supported subset of
// Jinja; exhausted where it takes more than a template may.
Result<std::string> render_chat(std::string_view chat_template, const ChatRequest& request);
Result<std::string> render_chat(std::string_view chat_template,
                                std::span<const ChatMessage> messages, bool add_generation_prompt,
                                std::string_view bos_token, std::string_view eos_token);

}  // namespace kvant
