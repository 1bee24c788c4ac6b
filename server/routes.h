// Routes: what is answered at once, by path; the rest is http_server's.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/api.h"
#include "server/metrics.h"

namespace kvant::server {

struct Plain {
  int code = 200;
  std::string body = {};
  const char* type = "application/json";
};

// JSON as the API sends it: what isn't UTF-8 becomes U+FFFD.
std::string text_of(const Json& json);
Plain plain_error(const ApiError& error);

// All that there are, with the one method that each takes.
struct Path {
  std::string_view path, method;
};
std::span<const Path> all_paths();
std::string_view allowed_method(std::string_view path);  // empty: there is no such path

class Routes {
 public:
  // Both outlive this.
  Routes(const ApiModel& model, const Metrics& metrics);

  // Why the request is refused before it is read: an unknown path, another method, no known key.
  // Paths under /v1 want one of `keys`, if there are any.
  std::optional<ApiError> check(std::string_view method, std::string_view path,
                                std::string_view authorization,
                                const std::vector<std::string>& keys) const;
  // Of a path that GET asks for.
  Plain get(std::string_view path, bool is_stopping) const;
  // Of /tokenize and /detokenize.
  Plain tokens(std::string_view path, const Json& body) const;

 private:
  const ApiModel& model_;
  const Metrics& metrics_;
  int64_t started_;
  std::string openapi_;
};

}  // namespace kvant::server
