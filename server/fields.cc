#include "server/fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

namespace kvant::server {

std::string shown(const Json& value) {
  constexpr size_t kMost = 60;
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

std::optional<int64_t> integer_of(const Json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    return std::nullopt;
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  const bool fits = std::abs(number) <= 0x1p53 && number == std::trunc(number);
  return fits ? std::optional(static_cast<int64_t>(number)) : std::nullopt;
}

const Json* Fields::member(std::string_view name) {
  known_.emplace(name);
  const auto found = object_.find(std::string(name));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void Fields::fail(std::string_view name, std::string message) {
  if (!error_) error_ = ApiError{.message = std::move(message), .param = std::string(name)};
}

void Fields::wrong(std::string_view name, const Json& seen, std::string_view wanted) {
  fail(name, fmt::format("{} is {}, wanted {}", name, shown(seen), wanted));
}

void Fields::read(std::string_view name, bool& out) {
  const Json* value = member(name);
  if (value == nullptr) return;
  if (!value->is_boolean()) return wrong(name, *value, "true or false");
  out = value->get<bool>();
}

void Fields::read(std::string_view name, std::string& out) {
  const Json* value = member(name);
  if (value == nullptr) return;
  if (!value->is_string()) return wrong(name, *value, "a text");
  out = value->get<std::string>();
}

void Fields::read(std::string_view name, int64_t low, int64_t high, int64_t& out) {
  const Json* value = member(name);
  if (value == nullptr) return;
  const std::optional<int64_t> number = integer_of(*value);
  if (!number || *number < low || *number > high)
    return wrong(name, *value, fmt::format("an integer from {} to {}", low, high));
  out = *number;
}

void Fields::read(std::string_view name, double low, double high, double& out) {
  const Json* value = member(name);
  if (value == nullptr) return;
  if (!value->is_number() || !(value->get<double>() >= low && value->get<double>() <= high))
    return wrong(name, *value, fmt::format("a number from {} to {}", low, high));
  out = value->get<double>();
}

void Fields::only(std::string_view name, const Json& harmless, std::string_view reason) {
  const Json* value = member(name);
  if (value != nullptr && *value != harmless)
    fail(name, fmt::format("{} is {}: {}", name, shown(*value), reason));
}

std::optional<ApiError> Fields::error() {
  for (const auto& [name, value] : object_.items()) {
    if (!known_.contains(name)) {
      const Json text = name;
      fail(name,
           fmt::format("unknown field {}, wanted one of {}", shown(text), fmt::join(known_, ", ")));
    }
  }
  return error_;
}

}  // namespace kvant::server
