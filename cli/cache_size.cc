#include "cli/cache_size.h"

#include <fmt/format.h>

#include "cli/terminal.h"

namespace kvant::cli {

std::optional<double> effective_bits(const CacheUsage& usage, bool seals) {
  // A page holds room for 64 tokens. Above 20 bits, where BF16 has 16, it is this room that counts.
  const bool mostly_room = usage.live_bytes > usage.ideal_bytes + usage.ideal_bytes / 4;
  if (usage.ideal_bytes == 0 || mostly_room || (seals && usage.sealed_bytes == 0))
    return std::nullopt;
  return 16 * static_cast<double>(usage.live_bytes) / static_cast<double>(usage.ideal_bytes);
}

std::string describe_size(const CacheUsage& usage, bool seals) {
  const std::string size = human_bytes(static_cast<double>(usage.live_bytes));
  if (const std::optional<double> bits = effective_bits(usage, seals))
    return fmt::format("{}, {:.2f} bits per element", size, *bits);
  return fmt::format(
      "{}, {}", size,
      seals && usage.sealed_bytes == 0 ? "no page sealed yet" : "pages partly filled");
}

}  // namespace kvant::cli
