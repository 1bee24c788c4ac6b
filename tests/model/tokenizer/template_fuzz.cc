// Any bytes as a chat template: over two conversations rendering ends, with text that is UTF-8 or
// with a sentence.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "model/tokenizer.h"
#include "model/tokenizer/unicode.h"

namespace kvant {
namespace {

// A slow template is a hostile one that the limit ends; a lower limit leaves time for others.
constexpr int64_t kWork = 300'000;

ChatRequest plain_chat() {
  static const ChatMessage messages[] = {{"system", "Be brief."},
                                         {"user", " Hi\n"},
                                         {"assistant", "<think>hm</think> H\xc3\xa9!"},
                                         {"user", "And \xf0\x9f\x98\x80?"}};
  ChatRequest request;
  request.messages = messages;
  request.add_generation_prompt = true;
  return request;
}

ChatRequest tool_chat() {
  static const std::vector<ChatMessage> messages = [] {
    std::vector<ChatMessage> out(4);
    out[0] = {"user", "", R"({"content":[{"type":"text","text":"Weather?"},{"type":"image"}]})"};
    out[1] = {"assistant", "",
              R"({"reasoning_content":"call it","tool_calls":[{"id":"call00001",)"
              R"("type":"function","function":{"name":"f","arguments":{"a":[1,2.5,null]}}}]})",
              false};
    out[2] = {"tool", "21", R"({"name":"f","tool_call_id":"call00001"})"};
    out[3] = {"assistant", "It is 21."};
    return out;
  }();
  ChatRequest request;
  request.messages = messages;
  request.tools_json = R"([{"type":"function","function":{"name":"f","description":"a 'b'",)"
                       R"("parameters":{"type":"object","properties":{"a":{"type":"array"}}}}}])";
  request.variables_json = R"({"enable_thinking":false,"documents":[{"title":"T","n":-7}]})";
  return request;
}

void render(std::string_view source, ChatRequest request) {
  request.bos_token = "<s>";
  request.eos_token = "</s>";
  request.now = 1;
  request.max_work = kWork;
  const Result<std::string> text = render_chat(source, request);
  if (!(text.ok() ? tokenizer::is_valid_utf8(*text) : !text.status().message().empty()))
    std::abort();
}

}  // namespace
}  // namespace kvant

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  kvant::render(source, kvant::plain_chat());
  kvant::render(source, kvant::tool_chat());
  return 0;
}
