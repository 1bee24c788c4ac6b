#include "files/fingerprint.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "files/mapped_file.h"

namespace kvant {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kProbe = 4096;

struct FreeState {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};
using State = std::unique_ptr<XXH3_state_t, FreeState>;

void add_probes(std::span<const std::byte> bytes, XXH3_state_t* state) {
  const uint64_t size = bytes.size();
  XXH3_128bits_update(state, &size, sizeof size);
  for (size_t at = 0; at < bytes.size();) {
    const bool is_edge = at == 0 || bytes.size() - at <= kMiB;
    const size_t count = std::min(is_edge ? kMiB : kProbe, bytes.size() - at);
    XXH3_128bits_update(state, bytes.data() + at, count);
    at += kMiB;
  }
}

Result<std::vector<std::filesystem::path>> weight_files(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return std::vector{path};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    const bool is_ours = entry.path().filename().string().starts_with("kvant-");
    if (entry.path().extension() == ".safetensors" && !is_ours) files.push_back(entry.path());
  }
  if (error) return io_error(path.string() + " can't be listed: " + error.message());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

Result<std::string> model_fingerprint(const std::filesystem::path& path) {
  KVANT_ASSIGN(const std::vector<std::filesystem::path> files, weight_files(path));
  const State state(XXH3_createState());
  XXH3_128bits_reset(state.get());
  for (const std::filesystem::path& file : files) {
    KVANT_ASSIGN(const MappedFile mapped, MappedFile::open(file));
    add_probes(mapped.bytes(), state.get());
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  char out[33];
  std::snprintf(out, sizeof out, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return std::string(out);
}

}  // namespace kvant
