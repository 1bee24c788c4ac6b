#include "model/tokenizer/json_node.h"

#include <fmt/format.h>

namespace kvant::tokenizer {
namespace {

using simdjson::dom::element_type;

std::string_view type_name(const std::optional<simdjson::dom::element>& value) {
  if (!value) return "nothing";
  switch (value->type()) {
    case element_type::ARRAY:
      return "an array";
    case element_type::OBJECT:
      return "an object";
    case element_type::INT64:
    case element_type::UINT64:
      return "an integer";
    case element_type::DOUBLE:
      return "a number";
    case element_type::STRING:
      return "a string";
    case element_type::BOOL:
      return "a boolean";
    case element_type::NULL_VALUE:
      return "null";
  }
  return "something else";
}

// The value as T, or simdjson's refusal turned into a sentence.
template <typename T>
Result<T> get(const JsonNode& node, const std::optional<simdjson::dom::element>& value,
              std::string_view wanted) {
  T out;
  if (!value || value->get(out) != simdjson::SUCCESS) {
    return node.wrong(fmt::format("found {}; wanted {}", type_name(value), wanted));
  }
  return out;
}

}  // namespace

JsonNode JsonNode::member(std::string_view key) const {
  std::string path = path_.empty() ? std::string(key) : path_ + "." + std::string(key);
  simdjson::dom::element child;
  if (!is_object() || (*value_)[key].get(child) != simdjson::SUCCESS)
    return {file_, std::move(path), std::nullopt};
  return {file_, std::move(path), child};
}

Result<std::string_view> JsonNode::string() const {
  return get<std::string_view>(*this, value_, "a string");
}
Result<bool> JsonNode::boolean() const { return get<bool>(*this, value_, "true or false"); }
Result<int64_t> JsonNode::integer() const { return get<int64_t>(*this, value_, "an integer"); }
Result<double> JsonNode::number() const { return get<double>(*this, value_, "a number"); }
Result<simdjson::dom::array> JsonNode::array() const {
  return get<simdjson::dom::array>(*this, value_, "an array");
}
Result<simdjson::dom::object> JsonNode::object() const {
  return get<simdjson::dom::object>(*this, value_, "an object");
}

Result<std::vector<JsonNode>> JsonNode::elements() const {
  KVANT_ASSIGN(const simdjson::dom::array list, array());
  std::vector<JsonNode> out;
  for (const simdjson::dom::element element : list) {
    out.push_back(JsonNode(file_, fmt::format("{}[{}]", path_, out.size()), element));
  }
  return out;
}

Result<std::string_view> JsonNode::string_or(std::string_view value) const {
  return present() ? string() : Result<std::string_view>(value);
}
Result<bool> JsonNode::boolean_or(bool value) const {
  return present() ? boolean() : Result<bool>(value);
}
Result<int64_t> JsonNode::integer_or(int64_t value) const {
  return present() ? integer() : Result<int64_t>(value);
}

std::string JsonNode::where() const {
  return path_.empty() ? file_ : fmt::format("{}: {}", file_, path_);
}
Status JsonNode::wrong(std::string_view message) const {
  return corrupt(fmt::format("{}: {}", where(), message));
}
Status JsonNode::not_supported(std::string_view message) const {
  return unsupported(fmt::format("{}: {}", where(), message));
}

}  // namespace kvant::tokenizer
