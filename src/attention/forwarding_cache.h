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
  Status check_invariants() const override { return inner_.check_invariants(); }

 protected:
  KvCache& inner() { return inner_; }

 private:
  KvCache& inner_;
};

}  // namespace kvant
