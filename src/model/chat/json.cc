#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>

#include "model/chat/limits.h"
#include "model/chat/value.h"
#include "model/tokenizer/unicode.h"

namespace kvant::chat {
namespace {

void append_string(std::string_view text, bool ascii, std::string& out) {
  static constexpr std::string_view kEscaped = "\"\\\n\r\t\b\f", kLetters = "\"\\nrtbf";
  out += '"';
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = tokenizer::next_char(text, pos);
    const size_t at = c < 0x80 ? kEscaped.find(static_cast<char>(c)) : std::string_view::npos;
    if (at != std::string_view::npos) {
      out += '\\';
      out += kLetters[at];
    } else if (c < 0x20 || (ascii && c > 0x7e && c < 0x10000)) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else if (ascii && c >= 0x10000) {
      const uint32_t high = static_cast<uint32_t>(c) - 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (high >> 10), 0xdc00 + (high & 0x3ff));
    } else {
      tokenizer::append_utf8(c, out);
    }
  }
  out += '"';
}

class Writer {
 public:
  explicit Writer(const JsonStyle& style) : style_(style) {}

  Status write(const Value& value) {
    if (out.size() > kMaxOutputBytes) return exhausted("chat template: tojson made too much text");
    if (value.is_none()) {
      out += "null";
    } else if (value.is_bool()) {
      out += value.truthy() ? "true" : "false";
    } else if (value.is_float()) {
      const std::string text = float_text(value.number());
      out += text == "nan"    ? "NaN"
             : text == "inf"  ? "Infinity"
             : text == "-inf" ? "-Infinity"
                              : text;
    } else if (value.is_int()) {
      out += repr(value);
    } else if (value.is_string()) {
      append_string(value.string(), style_.ascii, out);
    } else if (value.is_list()) {
      return write_list(value.list());
    } else if (value.is_dict()) {
      return write_dict(value.dict());
    } else {
      return invalid_argument(fmt::format(
          "chat template: Object of type {} is not JSON serializable", type_name(value)));
    }
    return {};
  }

  std::string out;

 private:
  void new_line() {
    if (style_.indent < 0) return;
    out += '\n';
    out.append(static_cast<size_t>(style_.indent) * level_, ' ');
  }
  void separate(bool first) {
    if (!first) out += style_.item_separator;
    new_line();
  }

  Status write_list(const List& list) {
    if (list.items.empty()) {
      out += "[]";
      return {};
    }
    out += '[';
    ++level_;
    for (size_t i = 0; i < list.items.size(); ++i) {
      separate(i == 0);
      KVANT_TRY(write(list.items[i]));
    }
    --level_;
    new_line();
    out += ']';
    return {};
  }

  Status write_dict(const Dict& dict) {
    if (dict.items.empty()) {
      out += "{}";
      return {};
    }
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(), [](const auto* a, const auto* b) {
        return compare(a->first, b->first).value_or(0) < 0;
      });
    }
    out += '{';
    ++level_;
    for (size_t i = 0; i < items.size(); ++i) {
      separate(i == 0);
      KVANT_TRY(write_key(items[i]->first));
      out += style_.key_separator;
      KVANT_TRY(write(items[i]->second));
    }
    --level_;
    new_line();
    out += '}';
    return {};
  }

  // Python turns keys that aren't strings into their JSON text.
  Status write_key(const Value& key) {
    if (key.is_string()) return write(key);
    out += '"';
    KVANT_TRY(write(key));
    out += '"';
    return {};
  }

  const JsonStyle& style_;
  size_t level_ = 0;
};

Value convert(const simdjson::dom::element& element) {
  switch (element.type()) {
    case simdjson::dom::element_type::ARRAY: {
      std::vector<Value> items;
      for (const simdjson::dom::element item : simdjson::dom::array(element))
        items.push_back(convert(item));
      return Value::list(std::move(items));
    }
    case simdjson::dom::element_type::OBJECT: {
      auto dict = std::make_shared<Dict>();
      for (const auto& [key, value] : simdjson::dom::object(element))
        dict->set(Value(key), convert(value));
      return Value(std::shared_ptr<const Dict>(std::move(dict)));
    }
    case simdjson::dom::element_type::INT64:
      return Value(int64_t(element));
    case simdjson::dom::element_type::UINT64:
      return Value(static_cast<double>(uint64_t(element)));
    case simdjson::dom::element_type::DOUBLE:
      return Value(double(element));
    case simdjson::dom::element_type::STRING:
      return Value(std::string_view(element));
    case simdjson::dom::element_type::BOOL:
      return Value(bool(element));
    case simdjson::dom::element_type::NULL_VALUE:
      return Value(None{});
  }
  return Value();
}

}  // namespace

Result<std::string> to_json(const Value& value, const JsonStyle& style) {
  Writer writer(style);
  KVANT_TRY(writer.write(value));
  return std::move(writer.out);
}

Result<Value> from_json(std::string_view text, std::string_view what) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  simdjson::error_code failed = parser.allocate(text.size(), kMaxValueDepth);
  if (failed == simdjson::SUCCESS) failed = parser.parse(text.data(), text.size()).get(root);
  if (failed != simdjson::SUCCESS) {
    return corrupt(fmt::format("{} is not JSON: {}", what, simdjson::error_message(failed)));
  }
  return convert(root);
}

}  // namespace kvant::chat
