// The KvCache that everything uses, and the doors that only tests open: formats of their own,
// another instruction set, memory that isn't clean.
#pragma once

#include <memory>
#include <vector>

#include "attention/bound_layers.h"
#include "attention/layer_pages.h"
#include "attention/page_writer.h"
#include "attention/paged_attention.h"
#include "cache/sequence_table.h"
#include "cache/slab_pool.h"
#include "cache/step.h"
#include "cache/swap.h"
#include "kvant/cache.h"

namespace kvant {

struct CacheHooks {
  FormatSource formats;
  Isa isa = active_isa();
  int fill = -1;  // byte that new slabs and workspaces are filled with; −1: whatever is there
};

class KvCacheImpl;
Result<std::unique_ptr<KvCacheImpl>> create_cache(CacheOptions options, ThreadPool& threads,
                                                  const CacheHooks& hooks);

// plan_cache() with formats of the caller's.
Result<CachePlan> plan_cache_with(const CacheOptions& options, std::span<const int64_t> lengths,
                                  const FormatSource& formats);

class KvCacheImpl final : public KvCache {
 public:
  KvCacheImpl(CacheOptions options, ThreadPool& threads, const CacheHooks& hooks);
  Status bind(const CacheHooks& hooks);
  // Keeps threads that nobody else does; they outlive everything here that uses them.
  void adopt(std::unique_ptr<ThreadPool> threads) { own_threads_ = std::move(threads); }

  const CacheOptions& options() const override { return options_; }
  Result<SequenceId> create_sequence() override;
  Status release_sequence(SequenceId id) override;
  Result<int64_t> length(SequenceId id) const override;
  Result<Fork> fork(SequenceId id, int64_t tokens) override;
  Result<Rollback> truncate(SequenceId id, int64_t tokens) override;
  Result<PrefixHit> create_from_prefix(std::span<const int32_t> tokens,
                                       std::string_view salt) override;
  Status publish(SequenceId id, std::span<const int32_t> tokens, std::string_view salt) override;
  Status clear_prefixes() override;
  Status swap_out(SequenceId id, const std::string& file) override;
  Status swap_in(SequenceId id) override;
  Status begin_step(std::span<const StepItem> batch) override;
  Status append(int layer, const float* k, const float* v, const float* k_pre_rope) override;
  Status attend(int layer, const float* q, const AttentionParams& params, float* out,
                PageMass* mass) override;
  Status end_step() override;
  void abort_step() override { step_.reset(); }
  Status read(SequenceId id, int layer, int64_t first, int64_t count, int64_t as_seen_from,
              float* k, float* v) const override;
  CacheUsage usage() const override;
  CacheRoom room() const override;
  uint64_t bytes_at(int64_t tokens) const override;
  const std::string& identity() const override { return identity_; }
  Status check_invariants() const override;

 private:
  Status preallocate();
  Status check_layer(int layer) const;
  Status check_prefixes() const;  // between steps, with an index
  SwapContext swap_context();
  bool can_grow_to(int64_t tokens) const;
  int64_t longest_sequence() const;  // kMaxSequenceTokens: no limit
  Status check_between_steps() const;
  void list_blocks(int layer);
  PagePlace locate(SequenceId id, size_t group, int64_t page, bool sealed) const;
  Status read_page(SequenceId id, int layer, int64_t page, int64_t as_seen_from,
                   PageRecord& out) const;
  bool has_rows(int layer) const { return appended_[static_cast<size_t>(layer)]; }

  std::unique_ptr<ThreadPool> own_threads_;
  CacheOptions options_;
  ThreadPool& threads_;
  BoundLayers bound_;
  SlabPool pool_;
  std::vector<PageGroup> groups_;
  std::unique_ptr<SequenceTable> table_;
  std::unique_ptr<PrefixIndex> prefixes_;  // null: this cache keeps none
  std::string identity_;
  int64_t longest_sequence_ = 0;
  std::unique_ptr<LayerPages> pages_;
  std::unique_ptr<PageWriter> writer_;
  PagedAttention attention_;

  // The running step, and the layers whose rows it has and whose workspace pages still are there.
  std::unique_ptr<Step> step_;
  std::vector<bool> appended_;
  int last_appended_ = -1;
  std::vector<PageRecord> records_;
  std::vector<QueryBlock> blocks_;
};

}  // namespace kvant
