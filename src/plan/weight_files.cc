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

}  // namespace

Result<uint64_t> weight_bytes_of_directory(const fs::path& directory,
                                           std::vector<std::string>& notes) {
  uint64_t bytes = 0;
  KVANT_ASSIGN(const std::vector<fs::path> shards, safetensors_files(directory));
  for (const fs::path& shard : shards) {
    const std::optional<uint64_t> data = data_bytes(shard);
    if (!data) {
      notes.push_back(shard.string() +
                      " is missing or no safetensors file: the weights aren't counted");
      return 0;
    }
    bytes += *data;
  }
  if (!shards.empty()) return bytes;
  for (const fs::path& file : files_ending(directory, ".bin")) {
    std::error_code error;
    const uintmax_t size = fs::file_size(file, error);
    if (!error) bytes += size;
  }
  return bytes;
}

}  // namespace kvant
