// Durable files: bytes that are on the disk before they have their name, so that no crash and no
// full disk leaves half of a file.
#pragma once

#include <filesystem>
#include <string_view>

#include "kvant/status.h"

namespace kvant {

// Writes a new file, or replaces one: a temporary name beside it, fsync, rename, fsync of the
// folder. io with the path and what the system said; what was there before then stays.
Status write_durably(const std::filesystem::path& path, std::string_view bytes);

// A folder's entries reach the disk.
Status sync_folder(const std::filesystem::path& folder);

}  // namespace kvant
