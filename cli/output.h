// Output: files in and out of the commands. "-" is the standard output.
#pragma once

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kvant/status.h"

namespace kvant::cli {

using Json = nlohmann::ordered_json;

struct CloseFile {
  void operator()(std::FILE* f) const { std::fclose(f); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

// Opens for reading. invalid_argument or not_found with the path in the message.
Result<File> open_file(const std::string& path);
// The same and reads it; io if that fails, invalid_argument if it is too long, or has no end.
Result<std::string> read_file(const std::string& path);

// A file gets its name when it is whole.
Status write_text(const std::string& path, std::string_view text);
// io where `path` can't be written, to be asked before the work that fills it. A file that is there
// keeps its contents, one that isn't there stays away. "" and "-" are always fine.
Status check_writable(const std::string& path);
// Sends what is buffered to the standard output; io where that failed now or before.
Status flush_output();
// Indented; bytes that aren't UTF-8 become U+FFFD, numbers that JSON doesn't have become null.
Status write_json(const std::string& path, const Json& value);

// A number, or null.
inline Json optional_json(std::optional<double> x) { return x ? Json(*x) : Json(); }

// One line of CSV; fields are quoted where they need it.
std::string csv_line(std::span<const std::string> fields);
// Objects with the same members as CSV, below a line of their names. Lists have no place in it.
std::string csv_table(std::span<const Json> rows);

// True if `path` ("" for: not asked for) takes the standard output, so that nothing else may go
// there.
inline bool takes_output(std::string_view path) { return path == "-"; }

}  // namespace kvant::cli
