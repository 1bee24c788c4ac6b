#include "cache/read_rule.h"

#include <algorithm>

namespace kvant {

int64_t first_held_page(const ReadRule& rule, int64_t length) {
  return std::min(page_of(first_visible(rule, length)), num_pages(length));
}

PageCounts held_pages(const ReadRule& rule, int64_t length, int64_t end_page) {
  const int64_t end = std::min(num_pages(length), end_page);
  const int64_t first = std::min(first_held_page(rule, length), end);
  // Sealed pages are the run from the first that is no sink to the last that the block of the next
  // query reads sealed.
  const int64_t first_sealed = std::max<int64_t>(first, rule.sink_pages);
  const int64_t end_sealed = rule.seals ? std::min(end, page_of(length) - rule.exact_pages) : 0;
  PageCounts counts;
  counts.sealed = std::max<int64_t>(0, end_sealed - first_sealed);
  counts.exact = end - first - counts.sealed;
  return counts;
}

bool seals_in_step(const ReadRule& rule, int64_t page, int64_t begin, int64_t end) {
  if (!reads_sealed(rule, page, page_of(end)) || reads_sealed(rule, page, page_of(begin)))
    return false;
  const int64_t first_reader = std::max(begin, (page + 1 + rule.exact_pages) * kPageTokens);
  return sees_page(rule, page, first_reader);
}

PageCounts pages_in_step(const ReadRule& rule, int64_t begin, int64_t end) {
  PageCounts counts = held_pages(rule, begin);
  const int64_t first_written = page_of(begin);
  const int64_t first = rule.seals ? first_written - rule.exact_pages : first_written;
  for (int64_t j = std::max<int64_t>(0, first); j < num_pages(end); ++j) {
    if (!holds_page(rule, j, end)) continue;
    const bool is_new = j >= first_written && !holds_page(rule, j, begin);
    if (is_new && !reads_sealed(rule, j, page_of(end))) ++counts.exact;
    if (seals_in_step(rule, j, begin, end)) ++counts.sealed;
  }
  return counts;
}

PageCounts peak_pages(const ReadRule& rule, int64_t length, int64_t step_tokens) {
  const int64_t pages = num_pages(length);
  const int64_t step_pages = num_pages(step_tokens) + 1;  // a step need not start at a page's start
  // `held` pages at rest, of which a step may replace as many as it touches.
  const auto with_step = [&](int64_t held) {
    return std::min(pages, held + std::min(held, step_pages));
  };
  const int64_t held = rule.window == 0 ? pages : with_step(num_pages(rule.window) + 1);
  if (!rule.seals) return {.sealed = 0, .exact = held};
  const int64_t sinks = std::min<int64_t>(rule.sink_pages, held);
  const int64_t ever_sealed = std::max<int64_t>(0, pages - rule.sink_pages - rule.exact_pages);
  return {.sealed = std::min(held, ever_sealed),
          .exact = std::min(held, sinks + with_step(rule.exact_pages + 1))};
}

}  // namespace kvant
