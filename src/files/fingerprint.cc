#include "files/fingerprint.h"

#include <algorithm>
#include <vector>

#include "files/digest.h"
#include "files/mapped_file.h"

namespace kvant {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kProbe = 4096;

void add_probes(std::span<const std::byte> bytes, Digest& digest) {
  digest.add(uint64_t{bytes.size()});
  for (size_t at = 0; at < bytes.size(); at += kMiB) {
    const bool is_edge = at == 0 || bytes.size() - at <= kMiB;
    digest.add(bytes.subspan(at, std::min(is_edge ? kMiB : kProbe, bytes.size() - at)));
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
  Digest digest;
  for (const std::filesystem::path& file : files) {
    KVANT_ASSIGN(const MappedFile mapped, MappedFile::open(file));
    add_probes(mapped.bytes(), digest);
  }
  return digest.hex();
}

}  // namespace kvant
