// Status and Result: how Kvant reports failure. No exception crosses an interface of the library.
//
// A Status is a code and one sentence: what was wrong, the value seen, what was wanted. An OK
// status holds no message and costs nothing. Result<T> is a value or the status that explains its
// absence. Both are [[nodiscard]].
#pragma once

#include <cassert>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace kvant {

enum class Code : uint8_t {
  kOk = 0,
  kInvalidArgument,  // the caller's value is wrong, whatever the state of the world
  kNotFound,
  kUnsupported,  // a valid request that this build, CPU or format can't serve
  kCorrupt,      // bytes that aren't what they claim to be
  kExhausted,    // memory, pages or a limit ran out
  kIo,
  kCancelled,
  kInternal,  // a bug of ours
};

// "invalid_argument", "not_found", … as written in logs.
std::string_view code_name(Code code);

// Process exit status of a command that ends with `code`: 0 OK, 2 bad input, 1 everything else.
int exit_code(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same status with "context: " in front of its message; OK stays OK.
  Status with_context(std::string_view context) const;

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status invalid_argument(std::string m) { return {Code::kInvalidArgument, std::move(m)}; }
inline Status not_found(std::string m) { return {Code::kNotFound, std::move(m)}; }
inline Status unsupported(std::string m) { return {Code::kUnsupported, std::move(m)}; }
inline Status corrupt(std::string m) { return {Code::kCorrupt, std::move(m)}; }
inline Status exhausted(std::string m) { return {Code::kExhausted, std::move(m)}; }
inline Status io_error(std::string m) { return {Code::kIo, std::move(m)}; }
inline Status cancelled(std::string m) { return {Code::kCancelled, std::move(m)}; }
inline Status internal_error(std::string m) { return {Code::kInternal, std::move(m)}; }

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {
    assert(!std::get<1>(state_).ok());
  }

  bool ok() const { return state_.index() == 0; }
  // The reason; OK when there is a value.
  Status status() const { return ok() ? Status() : std::get<1>(state_); }

  // REQUIRES ok().
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace kvant

#define KVANT_CONCAT_INNER(a, b) a##b
#define KVANT_CONCAT(a, b) KVANT_CONCAT_INNER(a, b)

// Returns from the enclosing function if `expr` (a Status) isn't OK.
#define KVANT_TRY(expr)                            \
  do {                                             \
    ::kvant::Status kvant_status_ = (expr);        \
    if (!kvant_status_.ok()) return kvant_status_; \
  } while (false)

// KVANT_ASSIGN(auto x, f()): x = the value of f()'s Result, or returns its status.
#define KVANT_ASSIGN(lhs, expr) KVANT_ASSIGN_INNER(KVANT_CONCAT(kvant_result_, __LINE__), lhs, expr)
#define KVANT_ASSIGN_INNER(result, lhs, expr) \
  auto result = (expr);                       \
  if (!result.ok()) return result.status();   \
  lhs = std::move(result).value()
