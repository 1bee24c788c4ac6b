#include "cli/out_folder.h"

#include <fmt/format.h>

namespace kvant::cli {

OutFolder::~OutFolder() {
  std::error_code error;
  for (const std::filesystem::path& folder : made_)
    std::filesystem::remove(folder, error);  // refuses one that isn't empty
}

Status OutFolder::make(const std::string& path) {
  std::error_code error;
  for (std::filesystem::path at = std::filesystem::absolute(path, error).lexically_normal();
       !std::filesystem::exists(at, error) && at.has_relative_path(); at = at.parent_path())
    made_.push_back(at);
  std::filesystem::create_directories(path, error);
  if (!error) return {};
  return io_error(fmt::format("--out {} can't be made: {}", path, error.message()));
}

}  // namespace kvant::cli
