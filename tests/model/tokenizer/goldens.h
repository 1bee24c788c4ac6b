// Goldens of tests/data/tokenizers (SOURCE.txt says what they are), and the two real models where
// they are installed.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace kvant::test {

inline std::filesystem::path tokenizer_data() {
  return std::filesystem::path(KVANT_TEST_DATA) / "tokenizers";
}

// Where tools/setup.sh puts a model.
inline std::filesystem::path model_file(const std::string& name) {
  if (const char* cache = std::getenv("KVANT_CACHE"))
    return std::filesystem::path(cache) / "models" / name;
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path root =
      xdg != nullptr ? std::filesystem::path(xdg)
                     : std::filesystem::path(home != nullptr ? home : "/") / ".cache";
  return root / "kvant" / "models" / name;
}

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Lines with their \xNN turned back into bytes.
inline std::vector<std::string> read_escaped_lines(const std::filesystem::path& path) {
  std::vector<std::string> lines;
  std::ifstream file(path, std::ios::binary);
  for (std::string line; std::getline(file, line);) {
    std::string bytes;
    for (size_t i = 0; i < line.size(); ++i) {
      if (line[i] == '\\') {
        bytes += static_cast<char>(std::stoi(line.substr(i + 2, 2), nullptr, 16));
        i += 3;
      } else {
        bytes += line[i];
      }
    }
    lines.push_back(std::move(bytes));
  }
  return lines;
}

// Lists of ids, each its length and its ids in LEB128.
inline std::vector<std::vector<int32_t>> read_id_lists(const std::filesystem::path& path) {
  const std::string bytes = read_bytes(path);
  size_t pos = 0;
  const auto number = [&] {
    uint32_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes.at(pos++));
      value |= static_cast<uint32_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  };
  std::vector<std::vector<int32_t>> lists;
  while (pos < bytes.size()) {
    std::vector<int32_t> ids(number());
    for (int32_t& id : ids) id = static_cast<int32_t>(number());
    lists.push_back(std::move(ids));
  }
  return lists;
}

}  // namespace kvant::test
