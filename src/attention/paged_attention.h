// PagedAttention: softmax(q·K)·V of a whole step's queries over their pages, on all threads.
//
// One recipe serves prefill and decode, so that a query's bits don't depend on how many queries a
// call holds: its pages are cut into spans at multiples of kSpanPages; each span starts from an
// empty softmax state (page_pass.h), and the states are merged in rising order. Work is cut by the
// problem's shape, never by the number of threads.
//
// Few rows: the spans of a unit run side by side. Many rows: their states would fill the caches
// many times over, so one thread takes the spans of a unit one after another; the merges are the
// same operations either way.
//
// This file knows no sequence and no pool: a caller lists the pages that a block of queries reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/page_pass.h"
#include "base/bytes.h"
#include "base/threads.h"
#include "kvant/cache.h"
#include "simd/cpu.h"

namespace kvant {

// 512 tokens: some tens of microseconds of work, against a merge of well under one.
inline constexpr int64_t kSpanPages = 8;

struct AttentionCall {
  const LayerFormat& layer;
  int window;  // tokens that a query sees; 0: all
  std::span<const QueryBlock> blocks;
  const AttentionParams& params;
  const float* q;  // [rows][num_query_heads][key_dim]
  float* out;      // [rows][num_query_heads][value_dim]
  PageMass* mass;  // mass.mass is sized and zeroed, num_pages set; may be null
};

class PagedAttention {
 public:
  // `threads` outlives this.
  PagedAttention(Isa isa, ThreadPool& threads) : kernels_(page_kernels(isa)), threads_(threads) {}

  void run(const AttentionCall& call);

  // Scratch that this keeps between calls.
  uint64_t workspace_bytes() const;

 private:
  // A KV head's query heads over neighbouring rows of a block: what goes through pages together.
  struct Unit {
    const QueryBlock* block;
    int kv_head;
    int first_row;  // within the block
    int num_rows;
    int64_t first_page;
    int64_t num_spans;
    size_t memory;  // where its scratch starts, in floats
  };
  struct UnitShape {
    size_t scaled_floats, prepared_floats, state_floats;
  };
  // Scratch of a unit: queries, prepared queries, softmax states.
  struct UnitMemory {
    float* scaled;
    std::byte* prepared;
    float* states;
    size_t state_floats;
  };

  void cut_into_units(const AttentionCall& call);
  UnitShape shape_of(const AttentionCall& call, const Unit& unit) const;
  size_t unit_floats(const AttentionCall& call, const Unit& unit, int64_t num_states) const;
  UnitMemory unit_memory(const AttentionCall& call, const Unit& unit, float* memory) const;
  void prepare_queries(const AttentionCall& call, const Unit& unit, const UnitMemory& memory) const;
  // Pages of a span: [first, end).
  struct PageRange {
    int64_t first, end;
  };
  static PageRange pages_of(const Unit& unit, int64_t span);
  static PageBytes first_bytes(const AttentionCall& call, const Unit& unit, int64_t span);
  void attend_span(const AttentionCall& call, const Unit& unit, const UnitMemory& memory,
                   int64_t span, const PageBytes& then, SoftmaxState& state, float* scores);
  void write_output(const AttentionCall& call, const Unit& unit, SoftmaxState& state) const;
  void run_split(const AttentionCall& call, size_t memory_floats, size_t num_scores);
  void run_in_turn(const AttentionCall& call, size_t num_scores);

  const PageKernels& kernels_;
  ThreadPool& threads_;
  std::vector<Unit> units_;
  std::vector<std::pair<uint32_t, uint32_t>> spans_;  // (unit, span)
  AlignedArray<float> memory_;
  AlignedArray<float> scores_;   // one per worker
  std::vector<float> page_max_;  // beside PageMass::mass
};

}  // namespace kvant
