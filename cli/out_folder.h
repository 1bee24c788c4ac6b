// OutFolder: --out as a directory that a failed run doesn't leave behind.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kvant/status.h"

namespace kvant::cli {

class OutFolder {
 public:
  OutFolder() = default;
  OutFolder(const OutFolder&) = delete;
  OutFolder& operator=(const OutFolder&) = delete;
  // Removes the directories that make() made and nothing was written to.
  ~OutFolder();

  // Makes the directory and those above it; io where that can't be.
  Status make(const std::string& path);

 private:
  std::vector<std::filesystem::path> made_;  // the innermost first
};

}  // namespace kvant::cli
