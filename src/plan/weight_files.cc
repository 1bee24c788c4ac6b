#include "plan/weight_files.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include "files/json.h"
#include "files/mapped_file.h"

namespace kvant {
namespace {

namespace fs = std::filesystem;

// Files of the directory that end so, sorted.
std::vector<fs::path> files_ending(const fs::path& directory, std::string_view ending) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
    if (entry.path().extension() == ending && entry.is_regular_file(ignored))
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

Result<std::vector<fs::path>> safetensors_files(const fs::path& directory) {
  std::error_code ignored;
  const fs::path index = directory / "model.safetensors.index.json";
  const fs::path single = directory / "model.safetensors";
  if (fs::exists(index, ignored)) {
    KVANT_ASSIGN(const JsonDocument document, JsonDocument::open(index));
    KVANT_ASSIGN(const std::optional<JsonObject> map, document.root().object("weight_map"));
    std::set<fs::path> shards;
    if (!map) return corrupt(document.root().where("weight_map") + " is missing");
    for (const std::string& tensor : map->keys()) {
      KVANT_ASSIGN(const std::optional<std::string> shard, map->string(tensor));
      if (shard) shards.insert(directory / fs::path(*shard).filename());
    }
    return std::vector<fs::path>(shards.begin(), shards.end());
  }
  if (fs::exists(single, ignored)) return std::vector<fs::path>{single};
  return files_ending(directory, ".safetensors");
}

// Nothing for a file that isn't there, or whose header doesn't fit into it.
std::optional<uint64_t> data_bytes(const fs::path& path) {
  const Result<MappedFile> file = MappedFile::open(path);
  if (!file.ok() || file->bytes().size() < sizeof(uint64_t)) return std::nullopt;
  uint64_t header = 0;
  std::memcpy(&header, file->bytes().data(), sizeof header);
  const uint64_t rest = file->bytes().size() - sizeof header;
  if (header > rest) return std::nullopt;
  return rest - header;
}

// The N of model-00001-of-0000N; 0 for another name.
size_t shards_named(const fs::path& file) {
  const std::string stem = file.stem().string();
  const size_t at = stem.rfind("-of-");
  if (at == stem.npos) return 0;
  const std::string digits = stem.substr(at + 4);
  size_t count = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9' || count > 100'000) return 0;
    count = 10 * count + static_cast<size_t>(c - '0');
  }
  return count;
}

// A sentence for shards that aren't all there; empty if they are.
std::string missing_shards(const std::vector<fs::path>& files) {
  size_t named = 0;
  for (const fs::path& file : files) named = std::max(named, shards_named(file));
  if (named <= files.size()) return "";
  return std::to_string(files.size()) + " of the " + std::to_string(named) + " shards of " +
         files.front().parent_path().string() + " are there";
}

constexpr const char* kUnknown =
    ": the files don't tell the bytes of the weights, which are estimated";

Result<uint64_t> safetensors_bytes(const std::vector<fs::path>& shards,
                                   std::vector<std::string>& notes) {
  uint64_t bytes = 0;
  for (const fs::path& shard : shards) {
    const std::optional<uint64_t> data = data_bytes(shard);
    if (!data) {
      notes.push_back(shard.string() + " is missing or no safetensors file" + kUnknown);
      return 0;
    }
    bytes += *data;
  }
  return bytes;
}

}  // namespace

Result<uint64_t> weight_bytes_of_directory(const fs::path& directory,
                                           std::vector<std::string>& notes) {
  KVANT_ASSIGN(std::vector<fs::path> files, safetensors_files(directory));
  const bool safetensors = !files.empty();
  if (!safetensors) files = files_ending(directory, ".bin");
  const std::string missing = missing_shards(files);
  if (!missing.empty()) {
    notes.push_back(missing + kUnknown);
    return 0;
  }
  if (safetensors) return safetensors_bytes(files, notes);
  uint64_t bytes = 0;
  for (const fs::path& file : files) {
    std::error_code error;
    const uintmax_t size = fs::file_size(file, error);
    if (!error) bytes += size;
  }
  return bytes;
}

}  // namespace kvant
