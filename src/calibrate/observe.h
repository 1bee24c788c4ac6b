// Observing: what calibration sees of a model, the rows of K, V and Q while it reads a text.
#pragma once

#include <cstdint>
#include <span>

#include "base/threads.h"
#include "kvant/cache.h"
#include "model/model.h"

namespace kvant {

// Rows of one layer and step, as attention takes them (K and Q after RoPE).
struct ObservedRows {
  int layer = 0;               // that owns the cache, where layers share one
  int64_t first_position = 0;  // of row 0, in tokens from the document's start
  int num_tokens = 0;
  int num_heads = 0;  // query heads of Q, else KV heads
  int dim = 0;
  const float* rows = nullptr;  // [num_tokens][num_heads][dim]
  // Of Q: how each row's attention is spread over the pages; null for K and V.
  const PageMass* mass = nullptr;

  const float* row(size_t token, size_t head) const {
    return rows + (token * static_cast<size_t>(num_heads) + head) * static_cast<size_t>(dim);
  }
};

class RowObserver {
 public:
  virtual ~RowObserver() = default;
  virtual void see_keys(const ObservedRows& rows) = 0;
  virtual void see_values(const ObservedRows& rows) = 0;
  virtual void see_queries(const ObservedRows& rows) = 0;
};

// Reads one document through a BF16 cache, from its beginning. `chunk` is a multiple of 64.
// invalid_argument with layer and position where K, V or Q isn't finite.
Status observe(Model& model, ThreadPool& threads, std::span<const int32_t> tokens, int chunk,
               std::span<RowObserver* const> observers);

}  // namespace kvant
