// The API's own description: docs/openapi.json, compiled in.
#pragma once

#include <string_view>

namespace kvant::server {

// An OpenAPI 3.1 document. tests/server/openapi_test.cc holds it against the code.
std::string_view openapi_text();

}  // namespace kvant::server
