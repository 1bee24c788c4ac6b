// Filters by name, and what the files that define them share: reading a filter's arguments.
#pragma once

#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "model/chat/evaluator.h"

namespace kvant::chat {

struct FilterRow {
  std::string_view name;
  Function function;
};

// The filters that work on text.
std::span<const FilterRow> text_filters();

inline std::string text_argument(Evaluator& e, const Arguments& a, size_t index,
                                 std::string_view name, std::string fallback) {
  const Value* value = a.find(index, name);
  return value == nullptr || value->is_none() ? std::move(fallback) : e.text(*value);
}
inline bool flag_argument(const Arguments& a, size_t index, std::string_view name, bool fallback) {
  const Value* value = a.find(index, name);
  return value == nullptr ? fallback : value->truthy();
}
inline int64_t int_argument(Evaluator& e, const Arguments& a, size_t index, std::string_view name,
                            int64_t fallback) {
  const Value* value = a.find(index, name);
  if (value == nullptr || value->is_none()) return fallback;
  if (value->is_integral()) return value->integer();
  e.fail(fmt::format("argument '{}' is '{}'; wanted an integer", name, type_name(*value)));
  return fallback;
}

}  // namespace kvant::chat
