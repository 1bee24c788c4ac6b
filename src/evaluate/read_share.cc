#include "evaluate/read_share.h"

#include <algorithm>

namespace kvant {
namespace {

struct Span {
  int64_t begin, end;
  int64_t size() const { return std::max<int64_t>(0, end - begin); }
};

// Tokens that the query at `position` of a layer with this window reads sealed, if its side is
// sealed at all.
Span sealed_span(const CacheOptions& options, int window, int64_t position) {
  const int64_t seen_from = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
  const int64_t open_page = position / kPageTokens * kPageTokens;
  return {std::max<int64_t>(seen_from, options.sinks), open_page - options.exact_window};
}

}  // namespace

Result<ReadShare> count_reads(const CacheOptions& options, int64_t first, int64_t queries) {
  ReadShare total;
  for (const CacheLayer& layer : options.layers) {
    if (layer.num_kv_heads == 0) continue;
    KVANT_ASSIGN(const FormatInfo* key, find_format(layer.formats.key));
    int sides = 1, sealed_sides = key->exact ? 0 : 1;
    if (layer.value_source == ValueSource::kOwnStream) {
      KVANT_ASSIGN(const FormatInfo* value, find_format(layer.formats.value));
      sides = 2;
      sealed_sides += value->exact ? 0 : 1;
    }
    for (int64_t t = first; t < first + queries; ++t) {
      const int64_t seen = layer.window > 0 ? std::min<int64_t>(layer.window, t + 1) : t + 1;
      total.reads += static_cast<double>(seen * sides);
      total.sealed +=
          static_cast<double>(sealed_span(options, layer.window, t).size() * sealed_sides);
    }
  }
  return total;
}

}  // namespace kvant
