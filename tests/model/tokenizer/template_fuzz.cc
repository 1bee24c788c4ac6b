// Any bytes as a chat template: render ends, with text or with a sentence.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "model/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvant::ChatMessage messages[] = {
      {"system", "Be brief."}, {"user", "Hi"}, {"assistant", ""}, {"tool", "21"}};
  messages[2].extra_json =
      R"({"tool_calls":[{"id":"call00001","function":{"name":"f","arguments":{"a":[1,2.5,null]}}}]})";
  kvant::ChatRequest request;
  request.messages = messages;
  request.add_generation_prompt = true;
  request.bos_token = "<s>";
  request.eos_token = "</s>";
  request.tools_json =
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";
  request.now = 1;
  (void)kvant::render_chat(std::string_view(reinterpret_cast<const char*>(data), size), request);
  return 0;
}
