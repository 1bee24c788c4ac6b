#include "cli/cache_size.h"

#include <fmt/format.h>

#include "cli/terminal.h"

namespace kvant::cli {

std::optional<double> effective_bits(const CacheUsage& usage, double exact_bits) {
  if (usage.ideal_bytes == 0) return std::nullopt;
  // A page holds room for 64 tokens. A quarter above what exact rows take it is this room that
  // counts.
  const bool seals = exact_bits == 0;
  const double bits =
      16 * static_cast<double>(usage.live_bytes) / static_cast<double>(usage.ideal_bytes);
  if (bits > 1.25 * (seals ? 16 : exact_bits) || (seals && usage.sealed_bytes == 0))
    return std::nullopt;
  return bits;
}

std::string describe_size(const CacheUsage& usage, double exact_bits) {
  const std::string size = human_bytes(static_cast<double>(usage.live_bytes));
  if (const std::optional<double> bits = effective_bits(usage, exact_bits))
    return fmt::format("{}, {:.2f} bits per element", size, *bits);
  return fmt::format(
      "{}, {}", size,
      exact_bits == 0 && usage.sealed_bytes == 0 ? "no page sealed yet" : "pages partly filled");
}

}  // namespace kvant::cli
