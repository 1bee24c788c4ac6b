// Chat templates rendered as Transformers renders them: the goldens of tests/data/templates.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "goldens.h"
#include "model/tokenizer.h"

namespace kvant {
namespace {

using json = nlohmann::ordered_json;  // templates see members in their order

// The goldens' messages: role and content apart, everything else as extra members.
std::vector<ChatMessage> messages_of(const json& list) {
  std::vector<ChatMessage> messages;
  for (json message : list) {
    ChatMessage out;
    out.role = message.value("role", "");
    message.erase("role");
    out.has_content = message.contains("content");
    if (out.has_content && message["content"].is_string()) {
      out.content = message["content"].get<std::string>();
      message.erase("content");
    }
    if (!message.empty()) out.extra_json = message.dump();
    messages.push_back(std::move(out));
  }
  return messages;
}

TEST(ChatTemplate, RendersAsTransformers) {
  // Another folder that tools/make_template_goldens.py --check has filled.
  const char* other = std::getenv("KVANT_TEMPLATE_GOLDENS");
  const std::filesystem::path folder = other != nullptr
                                           ? std::filesystem::path(other)
                                           : std::filesystem::path(KVANT_TEST_DATA) / "templates";
  const json goldens = json::parse(test::read_bytes(folder / "goldens.json"));
  size_t rendered = 0, refused = 0;
  for (const json& golden : goldens["cases"]) {
    const std::string source = golden.contains("file")
                                   ? test::read_bytes(folder / golden["file"].get<std::string>())
                                   : golden["template"].get<std::string>();
    const json& conversation = goldens["conversations"][golden["conversation"].get<std::string>()];
    const std::vector<ChatMessage> messages = messages_of(conversation["messages"]);
    ChatRequest request;
    request.messages = messages;
    request.add_generation_prompt = golden["add_generation_prompt"].get<bool>();
    request.bos_token = "<BOS>";
    request.eos_token = "<EOS>";
    const std::string tools = conversation.contains("tools") ? conversation["tools"].dump() : "";
    const std::string variables =
        conversation.contains("variables") ? conversation["variables"].dump() : "";
    request.tools_json = tools;
    request.variables_json = variables;
    request.now = 1721995200;
    const Result<std::string> text = render_chat(source, request);
    const std::string what = golden.contains("file") ? golden["file"].get<std::string>() : source;
    if (golden.contains("raises")) {
      ++refused;
      EXPECT_FALSE(text.ok()) << what << " gave " << *text;
      const std::string message = golden["raises"].get<std::string>();
      if (!text.ok() && !message.empty()) {
        EXPECT_EQ(text.status().message(), message) << what;
      }
      continue;
    }
    ++rendered;
    EXPECT_TRUE(text.ok()) << what << ": " << text.status().message();
    if (!text.ok()) continue;
    EXPECT_EQ(*text, golden["text"].get<std::string>())
        << what << "\nconversation " << golden["conversation"];
  }
  EXPECT_GT(rendered, 200u);
  EXPECT_GT(refused, 20u);
}

}  // namespace
}  // namespace kvant
