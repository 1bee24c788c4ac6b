// Checksum: damage to a safetensors file of ours is told from what it holds.
//
// `__metadata__` has a key kvant.checksum of 32 hexadecimal digits: XXH3-128 of the whole file, in
// which these digits are zeros. Header, names and data are all covered. It finds accidents; it
// isn't proof against forgery.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "kvant/status.h"

namespace kvant {

// What a writer gives as metadata, before anything else, so that with_checksum() finds it.
std::pair<std::string, std::string> checksum_placeholder();

// The file with its digits as they must be; as it is where it has no placeholder.
std::string with_checksum(std::string file);

// corrupt with `name` and both sums where they differ, or where there is none.
Status check_checksum(std::span<const std::byte> file, std::string_view name);

}  // namespace kvant
