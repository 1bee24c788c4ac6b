#include "cli/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "cli/new_file.h"
#include "cli/terminal.h"

namespace kvant::cli {
namespace {

// Of what is read as a whole: far more than any model's context, and no more than memory has.
constexpr size_t kLongestFile = 256'000'000;

}  // namespace

Result<File> open_file(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return invalid_argument(fmt::format("{} is a directory, wanted a file", path));
  File file(std::fopen(path.c_str(), "rb"));
  if (!file) return not_found(fmt::format("{} can't be read: {}", path, std::strerror(errno)));
  return file;
}

Result<std::string> read_file(const std::string& path) {
  KVANT_ASSIGN(const File file, open_file(path));
  std::string text;
  char buffer[1 << 16];
  size_t n;
  while ((n = std::fread(buffer, 1, sizeof buffer, file.get())) > 0) {
    text.append(buffer, n);
    if (text.size() <= kLongestFile) continue;
    return invalid_argument(fmt::format("{} is longer than {}, more than is read of one file", path,
                                        human_bytes(static_cast<double>(kLongestFile))));
  }
  if (std::ferror(file.get()) != 0)
    return io_error(fmt::format("{} can't be read to its end", path));
  return text;
}

Status flush_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  return io_error(fmt::format("the output can't be written{}{}", errno != 0 ? ": " : "",
                              errno != 0 ? std::strerror(errno) : ""));
}

Status check_writable(const std::string& path) {
  if (path.empty() || takes_output(path)) return {};
  std::error_code error;
  const std::filesystem::file_status before = std::filesystem::symlink_status(path, error);
  if (std::filesystem::is_directory(path, error))
    return invalid_argument(fmt::format("{} is a directory, wanted a file to write", path));
  // A pipe would wait for its reader: its permissions must do.
  const bool opens =
      std::filesystem::is_regular_file(path, error) || !std::filesystem::exists(path);
  const int file =
      opens ? open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666) : access(path.c_str(), W_OK);
  if (file < 0) return io_error(fmt::format("{} can't be written: {}", path, std::strerror(errno)));
  if (opens) close(file);
  if (before.type() == std::filesystem::file_type::not_found) std::filesystem::remove(path, error);
  return {};
}

Status write_text(const std::string& path, std::string_view text) {
  if (takes_output(path)) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return flush_output();
  }
  NewFile file(path);
  KVANT_TRY(file.write(text.data(), text.size()));
  return file.finish();
}

Status write_json(const std::string& path, const Json& value) {
  return write_text(path, value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::string csv_line(std::span<const std::string> fields) {
  std::string line;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) line += ',';
    if (fields[i].find_first_of(",\"\n") == std::string::npos) {
      line += fields[i];
      continue;
    }
    line += '"';
    for (char c : fields[i]) line += c == '"' ? std::string("\"\"") : std::string(1, c);
    line += '"';
  }
  return line + "\n";
}

std::string csv_table(std::span<const Json> rows) {
  std::string out;
  for (const Json& row : rows) {
    std::vector<std::string> names, fields;
    for (const auto& [key, value] : row.items()) {
      if (value.is_array()) continue;
      names.push_back(key);
      fields.push_back(
          value.is_null() ? "" : (value.is_string() ? value.get<std::string>() : value.dump()));
    }
    if (out.empty()) out += csv_line(names);
    out += csv_line(fields);
  }
  return out;
}

}  // namespace kvant::cli
