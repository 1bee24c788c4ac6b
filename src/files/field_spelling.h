// The name under which a configuration has a field.
#pragma once

#include <span>
#include <string_view>

#include "files/json.h"

namespace kvant {

// Another family's name of a field.
struct FieldSpelling {
  std::string_view name;
  std::string_view other;
};

// The first of `name` and its other spellings that the object has; `name` itself if it has none.
// Two names with two values are refused.
Result<std::string_view> find_spelling(const JsonObject& object, std::string_view name,
                                       std::span<const FieldSpelling> spellings);

}  // namespace kvant
