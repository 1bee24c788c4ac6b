#include "files/field_spelling.h"

#include <optional>
#include <string>

namespace kvant {

Result<std::string_view> find_spelling(const JsonObject& object, std::string_view name,
                                       std::span<const FieldSpelling> spellings) {
  std::string_view found = name;
  std::optional<int64_t> value;
  if (object.has(name)) {
    KVANT_ASSIGN(value, object.integer(name));
  }
  for (const FieldSpelling& row : spellings) {
    if (row.name != name || !object.has(row.other)) continue;
    KVANT_ASSIGN(const std::optional<int64_t> other, object.integer(row.other));
    if (value && *value != *other) {
      return corrupt(object.where(row.other) + ": " + std::to_string(*other) + ", but " +
                     std::string(found) + " is " + std::to_string(*value));
    }
    if (!value) found = row.other;
    value = other;
  }
  return found;
}

}  // namespace kvant
