// PagePass: some queries of one KV head against a run of pages: the inner part of paged attention.
//
// Pages are taken in rising order, each exact or sealed: a sealed one is computed on by its codec,
// an exact one by the float kernels. Per page: scores → soft cap → mask → maximum → exp → weighted
// sum. The queries are the heads of a group over neighbouring rows of one block, because one pass
// over a page's bytes then serves them all; by the contract of codecs and kernels no query's result
// depends on which others are there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/softmax_state.h"
#include "cache/group_layout.h"
#include "formats/codec.h"
#include "formats/page_kernels.h"

namespace kvant {

// How one side of a layer's pages is stored.
struct SideFormat {
  FloatType exact_type = FloatType::kBf16;
  // One per KV head; empty: the side is never encoded, and a sealed page holds its exact bytes.
  std::vector<std::unique_ptr<Codec>> codecs;
};

// What attention must know of a layer.
struct LayerFormat {
  int num_kv_heads = 0;
  int key_dim = 0;
  int value_dim = 0;
  bool value_from_key = false;
  int value_offset = 0;  // with value_from_key
  PartBytes exact;       // sizes in a record of an exact slab,
  PartBytes sealed;      // and of a sealed one
  SideFormat key;
  SideFormat value;
};

// One layer's record of a page (group_layout.h).
struct PageRecord {
  const std::byte* record = nullptr;
  bool sealed = false;
};

// Rows of one sequence whose positions share a block of 64 tokens, and hence the states of the
// pages that they read.
struct QueryBlock {
  int64_t first_position = 0;
  int num_rows = 0;
  int64_t first_row = 0;   // in the step's rows
  int num_tokens = 0;      // that exist in the block's own page; all pages before are full
  int64_t first_page = 0;  // of `pages`; the last is the block's own page
  std::span<const PageRecord> pages;
  int64_t own_page() const { return first_page + static_cast<int64_t>(pages.size()) - 1; }
};

// What queries of a pass share.
struct PassQueries {
  const LayerFormat& layer;
  const PageKernels& kernels;
  const QueryBlock& block;
  int window;  // tokens that a query sees, 0: all
  float soft_cap;
  int kv_head;
  int group;               // query heads of the KV head
  int64_t first_position;  // of the first row of the pass
  int num_rows;
  const float* scaled;        // [num_rows][group][key_dim], times the softmax scale
  const std::byte* prepared;  // the same as the K codec wants it; unused where the layer has none
  int num_queries() const { return num_rows * group; }
};

// Told after every page: of query i, `sum` = Σ exp(score − max) over the page.
class PageObserver {
 public:
  virtual ~PageObserver() = default;
  virtual void page_sum(int query, int64_t page, float sum, float max) = 0;
};

// A page's bytes of one KV head.
struct PageBytes {
  std::span<const std::byte> key;
  std::span<const std::byte> value;
};
PageBytes page_bytes(const LayerFormat& layer, const QueryBlock& block, int kv_head, int64_t page);

// Adds pages [first_page, end_page) to `state`. `scores` is scratch: [num_queries][64]. `then`:
// what this thread will read after the last of them, to be fetched meanwhile; empty: not known.
void pass_over_pages(const PassQueries& queries, int64_t first_page, int64_t end_page,
                     const PageBytes& then, SoftmaxState& state, float* scores,
                     PageObserver* observer);

}  // namespace kvant
