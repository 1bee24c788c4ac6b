#include "cli/output.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

namespace kvant::cli {
namespace {

struct Close {
  void operator()(std::FILE* f) const { std::fclose(f); }
};
using File = std::unique_ptr<std::FILE, Close>;

}  // namespace

Result<std::string> read_file(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return invalid_argument(fmt::format("{} is a directory, wanted a file", path));
  const File file(std::fopen(path.c_str(), "rb"));
  if (!file) return not_found(fmt::format("{} can't be read: {}", path, std::strerror(errno)));
  std::string text;
  char buffer[1 << 16];
  size_t n;
  while ((n = std::fread(buffer, 1, sizeof buffer, file.get())) > 0) text.append(buffer, n);
  if (std::ferror(file.get()) != 0)
    return io_error(fmt::format("{} can't be read to its end", path));
  return text;
}

Status write_text(const std::string& path, std::string_view text) {
  if (takes_output(path)) {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() ||
        std::fflush(stdout) != 0) {
      return io_error(fmt::format("the output can't be written: {}", std::strerror(errno)));
    }
    return {};
  }
  File file(std::fopen(path.c_str(), "wb"));
  if (!file) return io_error(fmt::format("{} can't be written: {}", path, std::strerror(errno)));
  const bool written = std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
  if (!written || std::fclose(file.release()) != 0) {
    return io_error(fmt::format("{} can't be written to its end: {}", path, std::strerror(errno)));
  }
  return {};
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

}  // namespace kvant::cli
