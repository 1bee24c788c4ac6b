// Where tools/setup.sh puts the real models.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace kvant {

inline std::filesystem::path models_folder() {
  namespace fs = std::filesystem;
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (!variable("KVANT_CACHE").empty()) return fs::path(variable("KVANT_CACHE")) / "models";
  if (!variable("XDG_CACHE_HOME").empty())
    return fs::path(variable("XDG_CACHE_HOME")) / "kvant" / "models";
  return fs::path(variable("HOME")) / ".cache" / "kvant" / "models";
}

}  // namespace kvant
