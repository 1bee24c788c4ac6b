// JsonNode: a value of a JSON file that knows its path, so that a wrong one can be named in an
// error.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/status.h"

namespace kvant::tokenizer {

class JsonNode {
 public:
  JsonNode(std::string_view file, simdjson::dom::element value) : file_(file), value_(value) {}

  // The member or element; an absent node (whose own members are absent) where there is none.
  JsonNode member(std::string_view key) const;
  // Null counts as absent.
  bool present() const { return value_.has_value() && !value_->is_null(); }
  bool is_string() const { return value_.has_value() && value_->is_string(); }
  bool is_object() const { return value_.has_value() && value_->is_object(); }
  bool is_array() const { return value_.has_value() && value_->is_array(); }

  // corrupt, with file and path, where the node is absent or of another type.
  Result<std::string_view> string() const;
  Result<bool> boolean() const;
  Result<int64_t> integer() const;
  Result<double> number() const;
  Result<std::vector<JsonNode>> elements() const;
  // The bare array or object, for the two lists that are too long for a node an element.
  Result<simdjson::dom::array> array() const;
  Result<simdjson::dom::object> object() const;

  // The same, or the default where the node is absent.
  Result<std::string_view> string_or(std::string_view value) const;
  Result<bool> boolean_or(bool value) const;
  Result<int64_t> integer_or(int64_t value) const;

  // corrupt/unsupported "FILE: PATH: message".
  Status wrong(std::string_view message) const;
  Status not_supported(std::string_view message) const;
  const std::string& path() const { return path_; }

 private:
  JsonNode(std::string_view file, std::string path, std::optional<simdjson::dom::element> value)
      : file_(file), path_(std::move(path)), value_(value) {}
  std::string where() const;

  std::string file_;
  std::string path_;
  std::optional<simdjson::dom::element> value_;
};

}  // namespace kvant::tokenizer
