// ForwardingCache: a KvCache that passes everything on to another one; the base of those that look
// at what goes through.
#pragma once

#include "kvant/cache.h"

namespace kvant {

class ForwardingCache : public KvCache {
 public:
  // `inner` outlives this.
  explicit ForwardingCache(KvCache& inner) : inner_(inner) {}

  const CacheOptions& options() const override { return inner_.options(); }
  Result<SequenceId> create_sequence() override { return inner_.create_sequence(); }
  Status release_sequence(SequenceId id) override { return inner_.release_sequence(id); }
  Result<int64_t> length(SequenceId id) const override { return inner_.length(id); }
  Result<Fork> fork(SequenceId id, int64_t tokens) override { return inner_.fork(id, tokens); }
  Result<Rollback> truncate(SequenceId id, int64_t tokens) override {
    return inner_.truncate(id, tokens);
  }
  Result<PrefixHit> create_from_prefix(std::span<const int32_t> tokens,
                                       std::string_view salt) override {
    return inner_.create_from_prefix(tokens, salt);
  }
  Status publish(SequenceId id, std::span<const int32_t> tokens, std::string_view salt) override {
    return inner_.publish(id, tokens, salt);
  }
  Status clear_prefixes() override { return inner_.clear_prefixes(); }
  Status swap_out(SequenceId id, const std::string& file) override {
    return inner_.swap_out(id, file);
  }
  Status swap_in(SequenceId id) override { return inner_.swap_in(id); }
  Status begin_step(std::span<const StepItem> batch) override { return inner_.begin_step(batch); }
  Status append(int layer, const float* k, const float* v, const float* k_pre_rope) override {
    return inner_.append(layer, k, v, k_pre_rope);
  }
  Status attend(int layer, const float* q, const AttentionParams& params, float* out,
                PageMass* mass) override {
    return inner_.attend(layer, q, params, out, mass);
  }
  Status end_step() override { return inner_.end_step(); }
  void abort_step() override { inner_.abort_step(); }
  Status read(SequenceId id, int layer, int64_t first, int64_t count, int64_t as_seen_from,
              float* k, float* v) const override {
    return inner_.read(id, layer, first, count, as_seen_from, k, v);
  }
  CacheUsage usage() const override { return inner_.usage(); }
  CacheRoom room() const override { return inner_.room(); }
  uint64_t bytes_at(int64_t tokens) const override { return inner_.bytes_at(tokens); }
  const std::string& identity() const override { return inner_.identity(); }
  Status check_invariants() const override { return inner_.check_invariants(); }

 protected:
  KvCache& inner() { return inner_; }

 private:
  KvCache& inner_;
};

}  // namespace kvant
