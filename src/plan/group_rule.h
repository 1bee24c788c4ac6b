// How the read rule sees a planned group: what the arithmetic and its explanation share.
#pragma once

#include "cache/read_rule.h"
#include "kvant/plan.h"

namespace kvant {

// Entries of a stream in a sequence of `set`.
inline int64_t entries(const CacheStream& stream, const SequenceSet& set) {
  return stream.kind == StreamKind::kCross ? set.source_tokens
                                           : set.tokens / stream.tokens_per_entry;
}

inline ReadRule rule_of(const PlannedGroup& group, const PlanOptions& options) {
  return {.seals = group.seals,
          .sink_pages = options.sinks / kPageTokens,
          .exact_pages = options.exact_window / kPageTokens,
          .window = static_cast<int>(group.stream.window)};
}

}  // namespace kvant
