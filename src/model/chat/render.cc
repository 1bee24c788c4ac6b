// render_chat: a conversation as the variables that Transformers gives a chat template, and the
// template run on them.
#include <ctime>

#include "model/chat/evaluator.h"
#include "model/chat/parser.h"
#include "model/tokenizer.h"
#include "model/tokenizer/unicode.h"

namespace kvant {
namespace chat {
namespace {

Value text_value(std::string_view text) { return Value(tokenizer::repair_utf8(text)); }

// Members of a JSON object after those of `dict`; null ones are left out, as Transformers does for
// messages.
Status add_members(std::string_view json, std::string_view what, Dict& dict) {
  if (json.empty()) return {};
  KVANT_ASSIGN(const Value object, from_json(json, what));
  if (!object.is_dict()) return invalid_argument(std::string(what) + " is not a JSON object");
  for (const auto& [key, value] : object.dict().items) {
    if (!value.is_none()) dict.set(key, value);
  }
  return {};
}

// Transformers offers a message's reasoning under all the names that templates read.
void alias_reasoning(Dict& message) {
  for (const std::string_view name : {"reasoning_content", "thinking", "reasoning"}) {
    const Value* found = message.find(name);
    if (found == nullptr) continue;
    const Value reasoning = *found;
    if (message.find(std::string_view("thinking")) == nullptr)
      message.set(Value("thinking"), reasoning);
    message.set(Value("reasoning_content"), reasoning);
    return;
  }
}

Result<Value> messages_value(std::span<const ChatMessage> messages) {
  std::vector<Value> list;
  for (const ChatMessage& message : messages) {
    auto dict = std::make_shared<Dict>();
    dict->set(Value("role"), text_value(message.role));
    if (message.has_content) dict->set(Value("content"), text_value(message.content));
    KVANT_TRY(add_members(message.extra_json, "the message's extra members", *dict));
    alias_reasoning(*dict);
    list.emplace_back(std::shared_ptr<const Dict>(std::move(dict)));
  }
  return Value::list(std::move(list));
}

}  // namespace
}  // namespace chat

Result<std::string> render_chat(std::string_view chat_template, const ChatRequest& request) {
  KVANT_ASSIGN(const chat::NodePtr root, chat::parse(tokenizer::repair_utf8(chat_template)));
  KVANT_ASSIGN(chat::Value messages, chat::messages_value(request.messages));
  chat::Value tools(chat::None{});
  if (!request.tools_json.empty()) {
    KVANT_ASSIGN(tools, chat::from_json(request.tools_json, "the list of tools"));
  }
  chat::Evaluator::Variables variables = {
      {"messages", std::move(messages)},
      {"tools", std::move(tools)},
      {"documents", chat::Value(chat::None{})},
      {"add_generation_prompt", chat::Value(request.add_generation_prompt)},
      {"bos_token", chat::text_value(request.bos_token)},
      {"eos_token", chat::text_value(request.eos_token)},
  };
  chat::Dict extra;
  KVANT_TRY(chat::add_members(request.variables_json, "the template's extra variables", extra));
  for (auto& [name, value] : extra.items) variables.emplace_back(name.string(), std::move(value));
  const std::time_t now =
      request.now != 0 ? static_cast<std::time_t>(request.now) : std::time(nullptr);
  return chat::Evaluator(now, request.max_work).run(*root, std::move(variables));
}

Result<std::string> render_chat(std::string_view chat_template,
                                std::span<const ChatMessage> messages, bool add_generation_prompt,
                                std::string_view bos_token, std::string_view eos_token) {
  ChatRequest request;
  request.messages = messages;
  request.add_generation_prompt = add_generation_prompt;
  request.bos_token = bos_token;
  request.eos_token = eos_token;
  return render_chat(chat_template, request);
}

}  // namespace kvant
