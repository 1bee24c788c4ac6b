#include "attention/page_pass.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/bytes.h"

namespace kvant {
namespace {

constexpr size_t kT = kPageTokens;

// A page as the pass reads it.
struct PageView {
  int64_t number;
  PageBytes bytes;
  bool sealed;
  int num_tokens;
};

// Pages lie scattered, and each is over before the hardware has noticed that it is being read. So
// kernels ask for what comes next while they compute (PageRead): a line for each that they read,
// because a core waits for memory in only so many places at once. What is longer than what is being
// read is asked for at its end.
void ask_for_rest(std::span<const std::byte> next, size_t asked) {
  if (asked < next.size()) prefetch(next.subspan(asked));
}

PageView view_page(const PassQueries& q, int64_t number) {
  const PageRecord& page = q.block.pages[static_cast<size_t>(number - q.block.first_page)];
  return {.number = number,
          .bytes = page_bytes(q.layer, q.block, q.kv_head, number),
          .sealed = page.sealed,
          .num_tokens = number == q.block.own_page() ? q.block.num_tokens : kPageTokens};
}

FloatPage float_page(const SideFormat& side, const PageRead& page, int dim, int num_tokens) {
  return {.data = page.bytes,
          .type = side.exact_type,
          .dim = dim,
          .num_tokens = num_tokens,
          .scale = nullptr,
          .layout = ScaleLayout::kPage,
          .block_scale = nullptr,
          .next = page.next.data()};
}

bool has_codes(const LayerFormat& layer) {
  return !layer.key.codecs.empty() || !layer.value.codecs.empty();
}

// Rows from the first on that see the page; later rows of a block see less of the past, never more.
int rows_that_see(const PassQueries& q, int64_t page) {
  if (q.window == 0) return q.num_rows;
  const int64_t last_position = (page + 1) * kPageTokens - 1 + (q.window - 1);
  return static_cast<int>(std::clamp<int64_t>(last_position - q.first_position + 1, 0, q.num_rows));
}

void compute_scores(const PassQueries& q, const PageView& page, int num_queries,
                    std::span<const std::byte> next, float* scores) {
  const size_t head = static_cast<size_t>(q.kv_head);
  if (page.sealed && !q.layer.key.codecs.empty()) {
    // The prepared form is of all queries of the pass and can't be cut short.
    q.layer.key.codecs[head]->scores({page.bytes.key.data(), next}, q.prepared, q.num_queries(),
                                     page.number * kPageTokens, scores, kT);
  } else {
    q.kernels.float_key_scores(
        float_page(q.layer.key, {page.bytes.key.data(), next}, q.layer.key_dim, page.num_tokens),
        q.scaled, num_queries, scores, kT);
  }
  ask_for_rest(next, page.bytes.key.size());
}

// Scores of tokens that the row doesn't see become −inf, by assignment: slots without a token may
// hold anything.
void mask_scores(const PassQueries& q, const PageView& page, int64_t position, float* scores) {
  const int64_t start = page.number * kPageTokens;
  const int64_t end = std::min<int64_t>(page.num_tokens, position - start + 1);
  const int64_t begin = q.window == 0 ? 0 : std::max<int64_t>(0, position - q.window + 1 - start);
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  for (int64_t t = 0; t < std::min(begin, end); ++t) scores[t] = kMasked;
  for (int64_t t = end; t < kPageTokens; ++t) scores[t] = kMasked;
}

// Scores become weights: capped, masked, and relative to the largest so far.
void finish_scores(const PassQueries& q, const PageView& page, int num_queries, float* scores,
                   SoftmaxState& state, PageObserver* observer) {
  const size_t size = static_cast<size_t>(num_queries) * kT;
  for (size_t i = 0; q.soft_cap > 0 && i < size; ++i)
    scores[i] = q.soft_cap * std::tanh(scores[i] / q.soft_cap);
  const bool all_seen = q.window == 0 && page.number < q.block.own_page();
  for (int i = 0; !all_seen && i < num_queries; ++i) {
    mask_scores(q, page, q.first_position + i / q.group, scores + static_cast<size_t>(i) * kT);
  }
  for (int first = 0; first < num_queries; first += SoftmaxState::kMostRows) {
    const int count = std::min(SoftmaxState::kMostRows, num_queries - first);
    const auto sums =
        state.add_scores(first, count, scores + static_cast<size_t>(first) * kT, q.kernels);
    for (int i = 0; observer != nullptr && i < count; ++i) {
      observer->page_sum(first + i, page.number, sums[static_cast<size_t>(i)],
                         state.max[first + i]);
    }
  }
}

void add_values(const PassQueries& q, const PageView& page, int num_queries,
                std::span<const std::byte> next, const float* p, SoftmaxState& state) {
  const LayerFormat& layer = q.layer;
  const auto stride = static_cast<size_t>(layer.value_dim);
  if (layer.value_from_key) {
    q.kernels.float_value_from_key(
        float_page(layer.key, page.bytes.key.data(), layer.key_dim, page.num_tokens),
        layer.value_offset, layer.value_dim, p, kT, num_queries, state.acc_exact, stride);
  } else if (page.sealed && !layer.value.codecs.empty()) {
    layer.value.codecs[static_cast<size_t>(q.kv_head)]->accumulate(
        {page.bytes.value.data(), next}, p, kT, num_queries, state.acc_coded, stride);
  } else {
    q.kernels.float_value_accumulate(
        float_page(layer.value, {page.bytes.value.data(), next}, layer.value_dim, page.num_tokens),
        p, kT, num_queries, state.acc_exact, stride);
  }
  ask_for_rest(next, page.bytes.value.size());
}

}  // namespace

PageBytes page_bytes(const LayerFormat& layer, const QueryBlock& block, int kv_head, int64_t page) {
  const PageRecord& record = block.pages[static_cast<size_t>(page - block.first_page)];
  const PartBytes& parts = record.sealed ? layer.sealed : layer.exact;
  return {.key = {record.record + key_offset(parts, kv_head), parts.key},
          .value = {record.record + value_offset(parts, kv_head), parts.value}};
}

void pass_over_pages(const PassQueries& q, int64_t first_page, int64_t end_page,
                     const PageBytes& then, SoftmaxState& state, float* scores,
                     PageObserver* observer) {
  for (int64_t number = first_page; number < end_page; ++number) {
    const int num_queries = rows_that_see(q, number) * q.group;
    if (num_queries == 0) continue;
    const PageView page = view_page(q, number);
    const PageBytes following =
        number + 1 < end_page ? page_bytes(q.layer, q.block, q.kv_head, number + 1) : then;
    // K asks for V and V for the next K; codes, which are over too soon for that, each for the next
    // page's part of their own side.
    const bool skip = q.layer.value_from_key || (page.sealed && has_codes(q.layer));
    compute_scores(q, page, num_queries, skip ? following.key : page.bytes.value, scores);
    finish_scores(q, page, num_queries, scores, state, observer);
    add_values(q, page, num_queries, skip ? following.value : following.key, scores, state);
  }
}

}  // namespace kvant
