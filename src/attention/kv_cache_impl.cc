#include "attention/kv_cache_impl.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "attention/cache_identity.h"

namespace kvant {
namespace {

std::string layer_name(int layer) { return "layer " + std::to_string(layer); }

Status no_step(const char* what) {
  return invalid_argument(std::string(what) + " needs a step; call begin_step first");
}

// Rows of the step in one block of 64 positions.
struct BlockRange {
  int64_t begin, end;
};
BlockRange block_range(const StepSequence& item, int64_t block) {
  return {std::max(item.begin, block * kPageTokens), std::min(item.end, (block + 1) * kPageTokens)};
}

}  // namespace

Result<std::unique_ptr<KvCacheImpl>> create_cache(CacheOptions options, ThreadPool& threads,
                                                  const CacheHooks& hooks) {
  auto cache = std::make_unique<KvCacheImpl>(std::move(options), threads, hooks);
  KVANT_TRY(cache->bind(hooks));
  return cache;
}

KvCacheImpl::KvCacheImpl(CacheOptions options, ThreadPool& threads, const CacheHooks& hooks)
    : options_(std::move(options)),
      threads_(threads),
      pool_({.max_live_bytes = options_.max_bytes,
             .fixed = options_.preallocate_tokens > 0,
             .fill = hooks.fill}),
      attention_(hooks.isa, threads) {}

Status KvCacheImpl::bind(const CacheHooks& hooks) {
  if (options_.prefix_cache && options_.exact_window > 0) {
    return unsupported("a prefix cache and an exact window of " +
                       std::to_string(options_.exact_window) +
                       " tokens don't go together: shared pages are sealed, and a fresh sequence "
                       "reads those of the window exact; wanted an exact window of 0, or no prefix "
                       "cache");
  }
  KVANT_ASSIGN(bound_, bind_layers(options_, hooks.formats, hooks.isa));
  for (const GroupLayout& layout : bound_.groups) {
    if (2 * bound_.groups.size() > Handle::kMaxClasses) {
      return unsupported(std::to_string(bound_.groups.size()) +
                         " kinds of layers; the pool serves " +
                         std::to_string(Handle::kMaxClasses / 2));
    }
    PageGroup group{.layout = layout,
                    .exact_class = pool_.add_class(layout.exact_slab_bytes(), SlabKind::kExact)};
    if (layout.rule.seals)
      group.sealed_class = pool_.add_class(layout.sealed_slab_bytes(), SlabKind::kSealed);
    groups_.push_back(group);
  }
  KVANT_TRY(preallocate());
  longest_sequence_ = longest_sequence();
  identity_ = cache_identity(options_, hooks.isa);
  if (options_.prefix_cache) {
    prefixes_ = std::make_unique<PrefixIndex>(
        pool_, groups_,
        PrefixIndexOptions{.identity = identity_, .paths_agree = options_.paths_agree});
  }
  table_ = std::make_unique<SequenceTable>(pool_, groups_);
  pages_ = std::make_unique<LayerPages>(options_, bound_, pool_, hooks.fill);
  writer_ = std::make_unique<PageWriter>(bound_, *pages_, threads_);
  appended_.assign(bound_.layers.size(), false);
  return Status();
}

Status KvCacheImpl::preallocate() {
  if (options_.preallocate_tokens == 0) return Status();
  if (options_.preallocate_tokens > static_cast<uint64_t>(kMaxSequenceTokens)) {
    return invalid_argument(std::to_string(options_.preallocate_tokens) +
                            " tokens are to be preallocated; a sequence holds at most " +
                            std::to_string(kMaxSequenceTokens));
  }
  for (const PageGroup& group : groups_) {
    const PageCounts counts = peak_pages(
        group.layout.rule, static_cast<int64_t>(options_.preallocate_tokens), kStaticStepTokens);
    KVANT_TRY(pool_.preallocate(group.exact_class, static_cast<size_t>(counts.exact)));
    if (counts.sealed > 0)
      KVANT_TRY(pool_.preallocate(group.sealed_class, static_cast<size_t>(counts.sealed)));
  }
  return Status();
}

Status KvCacheImpl::check_between_steps() const {
  return step_ == nullptr ? Status() : invalid_argument("a step is running; end or abort it first");
}

Status KvCacheImpl::check_layer(int layer) const {
  if (layer < 0 || layer >= static_cast<int>(bound_.layers.size())) {
    return invalid_argument(layer_name(layer) + " doesn't exist; the cache has " +
                            std::to_string(bound_.layers.size()) + " layers");
  }
  if (bound_.layers[static_cast<size_t>(layer)].owner < 0)
    return invalid_argument(layer_name(layer) + " has no cache");
  return Status();
}

Result<SequenceId> KvCacheImpl::create_sequence() { return table_->create(); }

Status KvCacheImpl::release_sequence(SequenceId id) {
  KVANT_TRY(check_between_steps());
  return table_->release(id);
}

Result<int64_t> KvCacheImpl::length(SequenceId id) const {
  const Sequence* sequence = table_->find(id);
  if (sequence == nullptr) return not_found("sequence " + std::to_string(id) + " doesn't exist");
  return sequence->length;
}

Result<KvCache::Fork> KvCacheImpl::fork(SequenceId id, int64_t tokens) {
  KVANT_TRY(check_between_steps());
  return table_->fork(id, tokens);
}

Result<Rollback> KvCacheImpl::truncate(SequenceId id, int64_t tokens) {
  KVANT_TRY(check_between_steps());
  return table_->truncate(id, tokens);
}

Status KvCacheImpl::begin_step(std::span<const StepItem> batch) {
  KVANT_TRY(check_between_steps());
  KVANT_ASSIGN(step_, Step::begin(*table_, pool_, groups_, batch, prefixes_.get()));
  pages_->begin_step(*step_);
  appended_.assign(bound_.layers.size(), false);
  last_appended_ = -1;
  return Status();
}

Status KvCacheImpl::append(int layer, const float* k, const float* v, const float* k_pre_rope) {
  if (step_ == nullptr) return no_step("append");
  KVANT_TRY(check_layer(layer));
  const BoundLayer& bound = bound_.layers[static_cast<size_t>(layer)];
  if (bound.owner != layer) {
    return invalid_argument(layer_name(layer) + " reads the cache of " + layer_name(bound.owner) +
                            " and appends nothing");
  }
  if (layer <= last_appended_) {
    return invalid_argument(layer_name(layer) + " is appended after " + layer_name(last_appended_) +
                            "; wanted every layer once, in order");
  }
  for (int before = last_appended_ + 1; before < layer; ++before) {
    if (bound_.layers[static_cast<size_t>(before)].owner == before) {
      return invalid_argument(layer_name(layer) + " is appended before " + layer_name(before) +
                              "; wanted every layer once, in order");
    }
  }
  if (k == nullptr || (v == nullptr && !bound.format.value_from_key) ||
      (k_pre_rope == nullptr && bound.key_needs.pre_rope_rows)) {
    return invalid_argument(layer_name(layer) +
                            ": K, V or (for formats that store it) K before RoPE is missing");
  }
  // What the layer before has in the shared workspace is overwritten now.
  if (last_appended_ >= 0 && !pages_->keeps_workspace(last_appended_)) {
    appended_[static_cast<size_t>(last_appended_)] = false;
  }
  KVANT_TRY(writer_->store(*step_, layer, {.key = k, .value = v, .pre_rope = k_pre_rope}));
  writer_->seal(*step_, layer);
  appended_[static_cast<size_t>(layer)] = true;
  last_appended_ = layer;
  return Status();
}

void KvCacheImpl::list_blocks(int layer) {
  const int owner = bound_.layers[static_cast<size_t>(layer)].owner;
  const auto group = static_cast<size_t>(bound_.layers[static_cast<size_t>(owner)].group);
  ReadRule rule = bound_.groups[group].rule;
  rule.window = options_.layers[static_cast<size_t>(layer)].window;
  blocks_.clear();
  records_.clear();
  for (const StepSequence& item : step_->sequences()) {
    for (int64_t block = page_of(item.begin); block < num_pages(item.end); ++block) {
      const BlockRange range = block_range(item, block);
      const int64_t first_page = page_of(first_visible(rule, range.begin));
      for (int64_t page = first_page; page <= block; ++page) {
        const bool sealed = reads_sealed(rule, page, block);
        const PagePlace place = step_->locate(item, group, page, sealed);
        records_.push_back(
            {.record = std::as_const(*pages_).record(owner, place, sealed), .sealed = sealed});
      }
      blocks_.push_back({.first_position = range.begin,
                         .num_rows = static_cast<int>(range.end - range.begin),
                         .first_row = item.first_row + (range.begin - item.begin),
                         .num_tokens = static_cast<int>(
                             std::min<int64_t>(item.end - block * kPageTokens, kPageTokens)),
                         .first_page = first_page,
                         .pages = {}});
    }
  }
  // Only now that the records no longer move.
  const PageRecord* next = records_.data();
  for (QueryBlock& block : blocks_) {
    const auto count = static_cast<size_t>(page_of(block.first_position) - block.first_page + 1);
    block.pages = {next, count};
    next += count;
  }
}

Status KvCacheImpl::attend(int layer, const float* q, const AttentionParams& params, float* out,
                           PageMass* mass) {
  if (step_ == nullptr) return no_step("attend");
  KVANT_TRY(check_layer(layer));
  const int owner = bound_.layers[static_cast<size_t>(layer)].owner;
  if (!has_rows(owner)) {
    return invalid_argument(layer_name(layer) + " can't attend: the rows of " + layer_name(owner) +
                            " weren't appended in this step, or a later layer was appended since");
  }
  const LayerFormat& format = bound_.layers[static_cast<size_t>(owner)].format;
  if (params.num_query_heads < 1 || params.num_query_heads % format.num_kv_heads != 0) {
    return invalid_argument(layer_name(layer) + ": " + std::to_string(params.num_query_heads) +
                            " query heads; wanted a multiple of its " +
                            std::to_string(format.num_kv_heads) + " KV heads");
  }
  if (!(params.soft_cap >= 0)) {
    return invalid_argument(layer_name(layer) + ": the soft cap is " +
                            std::to_string(params.soft_cap) +
                            "; wanted a positive number, or 0 for none");
  }
  list_blocks(layer);
  if (mass != nullptr) {
    int64_t most_pages = 0;
    for (const StepSequence& item : step_->sequences())
      most_pages = std::max(most_pages, num_pages(item.end));
    mass->num_pages = static_cast<int>(most_pages);
    mass->mass.assign(static_cast<size_t>(step_->num_rows() * params.num_query_heads * most_pages),
                      0.0f);
  }
  attention_.run({.layer = format,
                  .window = options_.layers[static_cast<size_t>(layer)].window,
                  .blocks = blocks_,
                  .params = params,
                  .q = q,
                  .out = out,
                  .mass = mass});
  return Status();
}

Status KvCacheImpl::end_step() {
  if (step_ == nullptr) return no_step("end_step");
  for (int layer = last_appended_ + 1; layer < static_cast<int>(bound_.layers.size()); ++layer) {
    if (bound_.layers[static_cast<size_t>(layer)].owner == layer) {
      return invalid_argument("the step can't end: " + layer_name(layer) + " wasn't appended");
    }
  }
  step_->commit();
  step_.reset();
  return Status();
}

PagePlace KvCacheImpl::locate(SequenceId id, size_t group, int64_t page, bool sealed) const {
  const int item = step_ == nullptr ? -1 : step_->find(id);
  if (item >= 0)
    return step_->locate(step_->sequences()[static_cast<size_t>(item)], group, page, sealed);
  const GroupPages& held = table_->find(id)->groups[group];
  if (page < held.first_held || page >= static_cast<int64_t>(held.pages.size())) return PagePlace();
  const HeldPage& entry = held.pages[static_cast<size_t>(page)];
  return PagePlace{.slab = sealed ? entry.sealed : entry.exact};
}

Status KvCacheImpl::read_page(SequenceId id, int layer, int64_t page, int64_t as_seen_from,
                              PageRecord& out) const {
  const int owner = bound_.layers[static_cast<size_t>(layer)].owner;
  const auto group = static_cast<size_t>(bound_.layers[static_cast<size_t>(owner)].group);
  const bool sealed = reads_sealed(bound_.groups[group].rule, page, page_of(as_seen_from));
  const PagePlace place = locate(id, group, page, sealed);
  const bool lost = !place.slab.is_null() ? false : place.workspace < 0 || !has_rows(owner);
  if (lost) {
    return not_found(layer_name(layer) + ": page " + std::to_string(page) + " of sequence " +
                     std::to_string(id) + " isn't held " + (sealed ? "sealed" : "exact") +
                     ", as position " + std::to_string(as_seen_from) + " sees it");
  }
  out = {.record = std::as_const(*pages_).record(owner, place, sealed), .sealed = sealed};
  return Status();
}

Status KvCacheImpl::read(SequenceId id, int layer, int64_t first, int64_t count,
                         int64_t as_seen_from, float* k, float* v) const {
  KVANT_TRY(check_layer(layer));
  const Sequence* sequence = table_->find(id);
  if (sequence == nullptr) return not_found("sequence " + std::to_string(id) + " doesn't exist");
  const int owner = bound_.layers[static_cast<size_t>(layer)].owner;
  const int item = step_ == nullptr || !has_rows(owner) ? -1 : step_->find(id);
  const int64_t length =
      item < 0 ? sequence->length : step_->sequences()[static_cast<size_t>(item)].end;
  if (first < 0 || count < 0 || first + count > length) {
    return invalid_argument("tokens " + std::to_string(first) + " to " +
                            std::to_string(first + count) + " were asked for; sequence " +
                            std::to_string(id) + " holds " + std::to_string(length));
  }
  const LayerFormat& format = bound_.layers[static_cast<size_t>(owner)].format;
  for (int64_t t = first; t < first + count;) {
    const int64_t page = page_of(t);
    const int64_t end = std::min(first + count, (page + 1) * kPageTokens);
    PageRecord record;
    KVANT_TRY(read_page(id, layer, page, as_seen_from, record));
    for (int head = 0; head < format.num_kv_heads; ++head) {
      const auto out = [&](float* data, int dim) {
        const size_t stride = static_cast<size_t>(format.num_kv_heads) * static_cast<size_t>(dim);
        return RowsOut{.data = data + static_cast<size_t>(t - first) * stride +
                               static_cast<size_t>(head) * static_cast<size_t>(dim),
                       .stride = stride,
                       .num_rows = static_cast<int>(end - t),
                       .dim = dim};
      };
      const int slot = static_cast<int>(t - page * kPageTokens);
      read_rows(format, record, head, Side::kKey, slot, out(k, format.key_dim));
      read_rows(format, record, head, Side::kValue, slot, out(v, format.value_dim));
    }
    t = end;
  }
  return Status();
}

CacheUsage KvCacheImpl::usage() const {
  CacheUsage usage;
  usage.reserved_bytes = pool_.reserved_bytes();
  usage.live_bytes = pool_.live_bytes();
  usage.cached_bytes = pool_.cached_bytes();
  usage.sealed_bytes = pool_.live_bytes(SlabKind::kSealed);
  usage.exact_bytes = pool_.live_bytes(SlabKind::kExact);
  usage.workspace_bytes = pages_->workspace_bytes() + writer_->workspace_bytes() +
                          attention_.workspace_bytes() + records_.capacity() * sizeof(PageRecord) +
                          blocks_.capacity() * sizeof(QueryBlock);
  for (const auto& [id, sequence] : table_->sequences()) {
    if (sequence.swapped != nullptr) {
      usage.swapped_bytes += sequence.swapped->memory_bytes();
      continue;
    }
    for (const GroupLayout& group : bound_.groups) {
      const int64_t tokens = visible_tokens(group.rule, sequence.length);
      usage.ideal_bytes += static_cast<uint64_t>(tokens) * group.token_elements * sizeof(uint16_t);
    }
  }
  return usage;
}

Status KvCacheImpl::check_invariants() const {
  KVANT_TRY(pool_.check_invariants());
  KVANT_TRY(table_->check_invariants());
  std::unordered_map<uint64_t, uint32_t> references;
  table_->count_references(references);
  if (prefixes_ != nullptr) {
    KVANT_TRY(prefixes_->check_invariants());
    prefixes_->count_references(references);
  }
  if (step_ != nullptr) step_->count_references(references);
  if (references.size() != pool_.live_slabs()) {
    return internal_error(std::to_string(pool_.live_slabs()) + " slabs are live and " +
                          std::to_string(references.size()) + " are referred to");
  }
  for (const auto& [bits, count] : references) {
    const Handle handle = Handle::from_bits(bits);
    if (!pool_.is_live(handle) || pool_.references(handle) != count) {
      return internal_error("a slab's reference count isn't the number of its references, " +
                            std::to_string(count));
    }
  }
  return Status();
}

}  // namespace kvant
