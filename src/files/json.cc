#include "files/json.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "files/mapped_file.h"

namespace kvant {

using nlohmann::json;

struct JsonDocument::Tree {
  json root;
};

namespace {

const json& as_json(const void* node) { return *static_cast<const json*>(node); }

// The field, or nullptr if it is absent or null.
const json* find(const void* node, std::string_view key) {
  const json& object = as_json(node);
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

// The value as it stands in the file, short enough for a message.
std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 60) + "…";
  return text;
}

std::optional<int64_t> to_integer(const json& value) {
  if (value.is_number_unsigned()) {
    const auto u = value.get<uint64_t>();
    if (std::in_range<int64_t>(u)) return static_cast<int64_t>(u);
    return std::nullopt;
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const auto d = value.get<double>();
  if (std::trunc(d) != d || std::fabs(d) > 0x1p53) return std::nullopt;
  return static_cast<int64_t>(d);
}

std::optional<double> to_number(const json& value) {
  if (!value.is_number()) return std::nullopt;
  const auto d = value.get<double>();
  if (!std::isfinite(d)) return std::nullopt;
  return d;
}

std::optional<bool> to_boolean(const json& value) {
  if (!value.is_boolean()) return std::nullopt;
  return value.get<bool>();
}

std::optional<std::string> to_string(const json& value) {
  if (!value.is_string()) return std::nullopt;
  return value.get<std::string>();
}

bool is_word_part(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Python's words for what no number is, outside of strings, as strings.
std::string quote_python_words(std::string_view text) {
  constexpr std::array<std::string_view, 3> kWords = {"NaN", "-Infinity", "Infinity"};
  std::string out;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\' && i + 1 < text.size()) {
      out += c;
      out += text[++i];
      continue;
    }
    if (c == '"') in_string = !in_string;
    const auto starts = [&](std::string_view word) { return text.substr(i).starts_with(word); };
    const auto word = std::find_if(kWords.begin(), kWords.end(), starts);
    if (in_string || word == kWords.end() || (i > 0 && is_word_part(text[i - 1]))) {
      out += c;
      continue;
    }
    out += '"' + std::string(*word) + '"';
    i += word->size() - 1;
  }
  return out;
}

// Where text stops being JSON: " at line 3, column 7".
std::string position_of_error(const std::string& text) {
  size_t at = text.size();
  try {
    if (!json::parse(text).is_discarded()) return "";
  } catch (const json::parse_error& error) {
    at = std::min(at, error.byte == 0 ? 0 : error.byte - 1);
  } catch (const json::exception&) {
    return "";  // a number beyond all bounds
  }
  const std::string_view before = std::string_view(text).substr(0, at);
  const size_t start = before.rfind('\n') == before.npos ? 0 : before.rfind('\n') + 1;
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  return " at line " + std::to_string(line) + ", column " + std::to_string(at - start + 1);
}

Status wrong(const std::string& where, const json& value, std::string_view wanted) {
  return corrupt(where + ": " + shown(value) + ", wanted " + std::string(wanted));
}

template <typename T>
Result<std::optional<T>> one(const void* node, std::string_view key, const std::string& where,
                             std::optional<T> (*convert)(const json&), std::string_view wanted) {
  const json* value = find(node, key);
  if (value == nullptr) return std::optional<T>();
  std::optional<T> out = convert(*value);
  if (!out) return wrong(where, *value, wanted);
  return out;
}

template <typename T>
Result<std::optional<std::vector<T>>> many(const void* node, std::string_view key,
                                           const std::string& where,
                                           std::optional<T> (*convert)(const json&),
                                           std::string_view wanted) {
  const json* value = find(node, key);
  if (value == nullptr) return std::optional<std::vector<T>>();
  if (!value->is_array()) return wrong(where, *value, wanted);
  std::vector<T> out;
  for (const json& element : *value) {
    std::optional<T> converted = convert(element);
    if (!converted) return wrong(where, element, wanted);
    out.push_back(std::move(*converted));
  }
  return std::optional(std::move(out));
}

}  // namespace

std::string JsonObject::where(std::string_view key) const { return prefix_ + std::string(key); }

bool JsonObject::has(std::string_view key) const { return find(node_, key) != nullptr; }

bool JsonObject::is_null(std::string_view key) const {
  return !has(key) && as_json(node_).contains(key);
}

bool JsonObject::is_string(std::string_view key) const {
  const json* value = find(node_, key);
  return value != nullptr && value->is_string();
}

bool JsonObject::is_list(std::string_view key) const {
  const json* value = find(node_, key);
  return value != nullptr && value->is_array();
}

std::vector<std::string> JsonObject::keys() const {
  std::vector<std::string> out;
  for (const auto& [key, value] : as_json(node_).items()) out.push_back(key);
  return out;
}

Result<std::optional<int64_t>> JsonObject::integer(std::string_view key) const {
  return one(node_, key, where(key), to_integer, "an integer");
}
Result<std::optional<double>> JsonObject::number(std::string_view key) const {
  return one(node_, key, where(key), to_number, "a number");
}
Result<std::optional<bool>> JsonObject::boolean(std::string_view key) const {
  return one(node_, key, where(key), to_boolean, "true or false");
}
Result<std::optional<std::string>> JsonObject::string(std::string_view key) const {
  return one(node_, key, where(key), to_string, "a string");
}
Result<std::optional<std::vector<int64_t>>> JsonObject::integers(std::string_view key) const {
  return many(node_, key, where(key), to_integer, "a list of integers");
}
Result<std::optional<std::vector<double>>> JsonObject::numbers(std::string_view key) const {
  return many(node_, key, where(key), to_number, "a list of numbers");
}
Result<std::optional<std::vector<std::string>>> JsonObject::strings(std::string_view key) const {
  return many(node_, key, where(key), to_string, "a list of strings");
}

Result<std::optional<JsonObject>> JsonObject::object(std::string_view key) const {
  const json* value = find(node_, key);
  if (value == nullptr) return std::optional<JsonObject>();
  if (!value->is_object()) return wrong(where(key), *value, "an object");
  return std::optional(JsonObject(value, where(key) + "."));
}

Result<std::optional<std::vector<JsonObject>>> JsonObject::objects(std::string_view key) const {
  const json* value = find(node_, key);
  if (value == nullptr) return std::optional<std::vector<JsonObject>>();
  if (!value->is_array()) return wrong(where(key), *value, "a list of objects");
  std::vector<JsonObject> out;
  for (const json& element : *value) {
    if (!element.is_object()) return wrong(where(key), element, "an object");
    out.push_back(JsonObject(&element, where(key) + "[" + std::to_string(out.size()) + "]."));
  }
  return std::optional(std::move(out));
}

JsonDocument::JsonDocument(std::unique_ptr<Tree> tree, std::string name)
    : tree_(std::move(tree)), name_(std::move(name)) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;

JsonObject JsonDocument::root() const { return JsonObject(&tree_->root, name_ + ": "); }

Result<JsonDocument> JsonDocument::parse(std::string_view text, std::string_view name) {
  const std::string file(name);
  if (text.size() > kMaxBytes) {
    return corrupt(file + ": " + std::to_string(text.size()) + " bytes, wanted at most " +
                   std::to_string(kMaxBytes));
  }
  bool too_deep = false;
  const auto limit_depth = [&too_deep](int depth, json::parse_event_t, json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  auto tree = std::make_unique<Tree>();
  tree->root = json::parse(text.begin(), text.end(), limit_depth, /*allow_exceptions=*/false);
  if (tree->root.is_discarded() && !too_deep) {
    tree->root = json::parse(quote_python_words(text), limit_depth, /*allow_exceptions=*/false);
  }
  if (too_deep) {
    return corrupt(file + ": nested more than " + std::to_string(kMaxDepth) + " levels deep");
  }
  if (text.find_first_not_of(" \t\r\n") == text.npos) return corrupt(file + ": is empty");
  if (tree->root.is_discarded()) {
    return corrupt(file + ": not valid JSON" + position_of_error(quote_python_words(text)));
  }
  if (!tree->root.is_object()) return wrong(file, tree->root, "an object");
  return JsonDocument(std::move(tree), file);
}

Result<JsonDocument> JsonDocument::open(const std::filesystem::path& path) {
  KVANT_ASSIGN(const MappedFile file, MappedFile::open(path));
  const std::span<const std::byte> bytes = file.bytes();
  return parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

}  // namespace kvant
