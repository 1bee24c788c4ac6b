// Fields: reads the members of a request's object. The first that is wrong is kept and what follows
// changes nothing, so that a reader is a list of fields and one question at the end.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/api.h"

namespace kvant::server {

class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}

  // Each marks the field as known. Absent and null leave `out` as it was.
  void read(std::string_view name, bool& out);
  void read(std::string_view name, std::string& out);
  void read(std::string_view name, int64_t low, int64_t high, int64_t& out);
  void read(std::string_view name, double low, double high, double& out);
  // The member as it is; nullptr: absent or null.
  const Json* member(std::string_view name);
  // A field that is taken only with a value that changes nothing.
  void only(std::string_view name, const Json& harmless, std::string_view reason);

  void fail(std::string_view name, std::string message);
  bool failed() const { return error_.has_value(); }
  // What was wrong; a member that nobody asked for is, too, and the sentence says what there is.
  std::optional<ApiError> error();

 private:
  void wrong(std::string_view name, const Json& seen, std::string_view wanted);

  const Json& object_;
  std::set<std::string, std::less<>> known_;
  std::optional<ApiError> error_;
};

// JSON's integers: 1.0 is one, too, as far as a double holds every integer.
std::optional<int64_t> integer_of(const Json& value);

// A value for a message: at most a few dozen bytes of it.
std::string shown(const Json& value);

}  // namespace kvant::server
