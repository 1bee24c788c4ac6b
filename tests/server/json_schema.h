// JSON Schema, as far as docs/openapi.json uses it: what the tests ask whether a value is valid.
#pragma once

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <string>

#include "server/api.h"
#include "server/fields.h"

namespace kvant::server {

class JsonSchema {
 public:
  explicit JsonSchema(const Json& document) : document_(document) {}

  // Of "#/a/b".
  const Json& at(const std::string& reference) const {
    return document_.at(Json::json_pointer(reference.substr(1)));
  }
  // The schema itself where it is a reference.
  const Json& resolved(const Json& schema) const {
    return schema.contains("$ref") ? resolved(at(schema["$ref"])) : schema;
  }

  // Throws where a keyword isn't known: nothing is left unchecked.
  bool allows(const Json& schema, const Json& value) const {
    for (const auto& [keyword, wanted] : schema.items()) {
      if (!keeps(keyword, wanted, schema, value)) return false;
    }
    return true;
  }

 private:
  static bool has_type(const std::string& type, const Json& value) {
    if (type == "null") return value.is_null();
    if (type == "boolean") return value.is_boolean();
    if (type == "string") return value.is_string();
    if (type == "array") return value.is_array();
    if (type == "object") return value.is_object();
    if (type == "number") return value.is_number();
    if (type == "integer")
      return value.is_number_integer() ||
             (value.is_number() && value == std::trunc(value.get<double>()));
    throw std::runtime_error("type " + type);
  }
  bool keeps(const std::string& keyword, const Json& wanted, const Json& schema,
             const Json& value) const {
    static const std::set<std::string> kSaysNothing = {"description", "example"};
    const auto allowed = [&](const Json& s) { return allows(s, value); };
    if (kSaysNothing.contains(keyword)) return true;
    if (keyword == "$ref") return allows(at(wanted), value);
    if (keyword == "type") {
      if (wanted.is_string()) return has_type(wanted, value);
      return std::ranges::any_of(wanted, [&](const Json& t) { return has_type(t, value); });
    }
    if (keyword == "const") return value == wanted;
    if (keyword == "enum") return std::ranges::find(wanted, value) != wanted.end();
    if (keyword == "anyOf") return std::ranges::any_of(wanted, allowed);
    if (keyword == "allOf") return std::ranges::all_of(wanted, allowed);
    if (keyword == "oneOf") return std::ranges::count_if(wanted, allowed) == 1;
    if (keyword == "minimum") return !value.is_number() || value >= wanted;
    if (keyword == "maximum") return !value.is_number() || value <= wanted;
    if (keyword == "exclusiveMinimum") return !value.is_number() || value > wanted;
    if (keyword == "exclusiveMaximum") return !value.is_number() || value < wanted;
    if (keyword == "minLength")
      return !value.is_string() || value.get<std::string>().size() >= wanted;
    if (keyword == "minItems") return !value.is_array() || value.size() >= wanted;
    if (keyword == "maxItems") return !value.is_array() || value.size() <= wanted;
    if (keyword == "maxProperties") return !value.is_object() || value.size() <= wanted;
    if (keyword == "items")
      return !value.is_array() ||
             std::ranges::all_of(value, [&](const Json& item) { return allows(wanted, item); });
    if (keyword == "required")
      return !value.is_object() || std::ranges::all_of(wanted, [&](const Json& name) {
        return value.contains(name.get<std::string>());
      });
    if (keyword == "properties") {
      if (!value.is_object()) return true;
      for (const auto& [name, member] : value.items()) {
        if (wanted.contains(name) && !allows(wanted[name], member)) return false;
      }
      return true;
    }
    if (keyword == "additionalProperties") {
      if (!value.is_object()) return true;
      for (const auto& [name, member] : value.items()) {
        if (schema.contains("properties") && schema["properties"].contains(name)) continue;
        if (wanted == Json(false) || !allows(wanted, member)) return false;
      }
      return true;
    }
    throw std::runtime_error("keyword " + keyword);
  }

  const Json& document_;
};

}  // namespace kvant::server
