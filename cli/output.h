// Output: files in and out of the commands. "-" is the standard output.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "kvant/status.h"

namespace kvant::cli {

using Json = nlohmann::ordered_json;

// not_found or io with the path in the message.
Result<std::string> read_file(const std::string& path);

Status write_text(const std::string& path, std::string_view text);
// Indented; bytes that aren't UTF-8 become U+FFFD, numbers that JSON doesn't have become null.
Status write_json(const std::string& path, const Json& value);

// One line of CSV; fields are quoted where they need it.
std::string csv_line(std::span<const std::string> fields);

// True if `path` ("" for: not asked for) takes the standard output, so that nothing else may go
// there.
inline bool takes_output(std::string_view path) { return path == "-"; }

}  // namespace kvant::cli
