// What KvCache says about pages that outlive their sequences or leave the pool, and about room.
#include <algorithm>

#include "attention/kv_cache_impl.h"
#include "cache/read_rule.h"

namespace kvant {
namespace {

Status no_sequence(SequenceId id) {
  return not_found("sequence " + std::to_string(id) + " doesn't exist");
}

}  // namespace

Status KvCacheImpl::check_prefixes() const {
  KVANT_TRY(check_between_steps());
  if (prefixes_ != nullptr) return Status();
  return unsupported("the cache keeps no prefixes; wanted CacheOptions::prefix_cache");
}

Result<KvCache::PrefixHit> KvCacheImpl::create_from_prefix(std::span<const int32_t> tokens,
                                                           std::string_view salt) {
  KVANT_TRY(check_prefixes());
  const SequenceId id = table_->create();
  Sequence& sequence = *table_->find(id);
  prefixes_->start(sequence, tokens, salt);
  return PrefixHit{.sequence = id, .tokens = sequence.length};
}

Status KvCacheImpl::publish(SequenceId id, std::span<const int32_t> tokens, std::string_view salt) {
  KVANT_TRY(check_prefixes());
  Sequence* sequence = table_->find(id);
  if (sequence == nullptr) return no_sequence(id);
  if (sequence->swapped != nullptr) {
    return invalid_argument("sequence " + std::to_string(id) + " is swapped out; swap it in first");
  }
  if (static_cast<int64_t>(tokens.size()) != sequence->length) {
    return invalid_argument(std::to_string(tokens.size()) + " tokens were given; sequence " +
                            std::to_string(id) + " holds " + std::to_string(sequence->length));
  }
  return prefixes_->publish(*sequence, tokens, salt);
}

Status KvCacheImpl::clear_prefixes() {
  KVANT_TRY(check_prefixes());
  prefixes_->clear();
  return Status();
}

SwapContext KvCacheImpl::swap_context() {
  return {.pool = pool_,
          .table = *table_,
          .groups = groups_,
          .index = prefixes_.get(),
          .identity = identity_};
}

Status KvCacheImpl::swap_out(SequenceId id, const std::string& file) {
  KVANT_TRY(check_between_steps());
  if (table_->find(id) == nullptr) return no_sequence(id);
  return kvant::swap_out(swap_context(), id, file);
}

Status KvCacheImpl::swap_in(SequenceId id) {
  KVANT_TRY(check_between_steps());
  if (table_->find(id) == nullptr) return no_sequence(id);
  return kvant::swap_in(swap_context(), id);
}

// Whether the steps of one token to the last 64 ends up to there, and that of the last whole page,
// have their pages in a pool that holds nothing else.
bool KvCacheImpl::can_grow_to(int64_t tokens) const {
  const auto has_room = [&](int64_t begin, int64_t end) {
    std::vector<size_t> counts;
    for (const PageGroup& group : groups_) {
      const PageCounts pages = pages_in_step(group.layout.rule, begin, end);
      const size_t last = std::max(group.exact_class, group.sealed_class);
      if (counts.size() <= last) counts.resize(last + 1);
      counts[group.exact_class] += static_cast<size_t>(pages.exact);
      if (group.layout.rule.seals) counts[group.sealed_class] += static_cast<size_t>(pages.sealed);
    }
    return pool_.can_hold(counts);
  };
  for (int64_t end = tokens; end > std::max<int64_t>(0, tokens - kPageTokens); --end) {
    if (!has_room(end - 1, end)) return false;
  }
  const int64_t last_page = page_of(tokens) - 1;
  return last_page < 0 || has_room(last_page * kPageTokens, (last_page + 1) * kPageTokens);
}

int64_t KvCacheImpl::longest_sequence() const {
  if (!pool_.is_limited()) return kMaxSequenceTokens;
  // Once every window has left the sinks and the exact pages behind, a page later nothing is
  // cheaper, and the longest can be searched for. Before, a window may give up exact pages, and
  // every page is looked at.
  int64_t varied_pages = 0;
  for (const PageGroup& group : groups_) {
    const ReadRule& rule = group.layout.rule;
    varied_pages =
        std::max(varied_pages, num_pages(rule.window) + rule.sink_pages + rule.exact_pages + 2);
  }
  int64_t fits = 0, too_many = kMaxSequenceTokens + 1;
  for (int64_t page = 1; page <= varied_pages && too_many > kMaxSequenceTokens; ++page) {
    const int64_t end = page * kPageTokens;
    can_grow_to(end) ? fits = end : too_many = end;
  }
  while (too_many - fits > 1) {
    const int64_t tokens = fits + (too_many - fits) / 2;
    (can_grow_to(tokens) ? fits : too_many) = tokens;
  }
  return fits;
}

CacheRoom KvCacheImpl::room() const {
  CacheRoom room;
  for (const PageGroup& group : groups_) {
    room.page_bytes += group.layout.exact_slab_bytes();
    if (group.layout.rule.seals) room.page_bytes += group.layout.sealed_slab_bytes();
  }
  if (!pool_.is_limited() || groups_.empty()) return room;
  room.free_bytes = pool_.free_bytes();
  if (longest_sequence_ < kMaxSequenceTokens) room.sequence_tokens = longest_sequence_;
  return room;
}

uint64_t KvCacheImpl::bytes_at(int64_t tokens) const {
  uint64_t bytes = 0;
  for (const PageGroup& group : groups_) {
    const PageCounts pages = held_pages(group.layout.rule, std::max<int64_t>(0, tokens));
    bytes += static_cast<uint64_t>(pages.exact) * group.layout.exact_slab_bytes();
    bytes += static_cast<uint64_t>(pages.sealed) * group.layout.sealed_slab_bytes();
  }
  return bytes;
}

}  // namespace kvant
