// The read rule: what a query sees of a page, as pure functions of positions.
//
// Everything that decides between exact and sealed (attention, sealing, freeing, truncation, the
// planner) asks here and nowhere else. Positions are tokens from the sequence's start; page j holds
// positions [64·j, 64·j + 64); a query's block is floor(position / 64). "At length n" means: seen
// by the next query, which will stand at position n.
#pragma once

#include <cstdint>

#include "kvant/format.h"

namespace kvant {

// Far beyond any model, and small enough that no sum of positions overflows.
inline constexpr int64_t kMaxSequenceTokens = int64_t{1} << 40;

// What the rule depends on, for one layer group.
struct ReadRule {
  bool seals = false;   // K or V has a format that encodes; otherwise pages stay exact
  int sink_pages = 0;   // pages at the start that stay exact
  int exact_pages = 0;  // W / 64: complete pages before the query's block that it reads exact
  int window = 0;       // tokens that a query sees, itself included; 0: all
};

inline int64_t page_of(int64_t position) { return position / kPageTokens; }
inline int64_t num_pages(int64_t length) { return (length + kPageTokens - 1) / kPageTokens; }

// True if a query of `block` reads `page` sealed: the page lies before 64·block − W and isn't a
// sink.
inline bool reads_sealed(const ReadRule& rule, int64_t page, int64_t block) {
  return rule.seals && page >= rule.sink_pages && page + 1 + rule.exact_pages <= block;
}

// The first position that the query at `position` sees.
inline int64_t first_visible(const ReadRule& rule, int64_t position) {
  return rule.window == 0 || position < rule.window ? 0 : position - rule.window + 1;
}

// True if a query at `position` sees a token of `page`, which isn't after its own.
inline bool sees_page(const ReadRule& rule, int64_t page, int64_t position) {
  return (page + 1) * kPageTokens > first_visible(rule, position);
}

// True if a sequence of `length` tokens holds `page`: it has tokens that the next query sees, or it
// is still open.
inline bool holds_page(const ReadRule& rule, int64_t page, int64_t length) {
  return page >= 0 && page < num_pages(length) && sees_page(rule, page, length);
}

// The first page that a sequence of `length` tokens holds; num_pages(length) if none.
int64_t first_held_page(const ReadRule& rule, int64_t length);

// True if the step that appends positions [begin, end) seals `page`, whose rows it has: the rule
// begins to ask for it there, and some query of the step or a later one sees it.
bool seals_in_step(const ReadRule& rule, int64_t page, int64_t begin, int64_t end);

// Tokens that the query after `length` tokens could see at most, itself not among them: what a
// perfect cache holds.
inline int64_t visible_tokens(const ReadRule& rule, int64_t length) {
  return rule.window == 0 || length < rule.window ? length : rule.window;
}

struct PageCounts {
  int64_t sealed = 0;
  int64_t exact = 0;
};
// Pages of each state that a sequence of `length` tokens holds after a step; of those before
// `end_page` only, where it is given.
PageCounts held_pages(const ReadRule& rule, int64_t length, int64_t end_page = kMaxSequenceTokens);

// Pages of each state that a sequence has while a step of its own runs: what it held at `begin`,
// and what the step takes to get to `end`.
PageCounts pages_in_step(const ReadRule& rule, int64_t begin, int64_t end);

// Enough pages of each state for a sequence that grows to `length` tokens by steps of at most
// `step_tokens`: inside a step, pages that it makes and pages that it gives up are live together.
PageCounts peak_pages(const ReadRule& rule, int64_t length, int64_t step_tokens);

}  // namespace kvant
