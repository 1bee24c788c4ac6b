#include "cache/step.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>

#include "cache/prefix_index.h"

namespace kvant {
namespace {

const HeldPage* held_page(const StepSequence& item, size_t group, int64_t page) {
  const GroupPages& held = item.sequence->groups[group];
  if (page < held.first_held || page >= static_cast<int64_t>(held.pages.size())) return nullptr;
  return &held.pages[static_cast<size_t>(page)];
}

}  // namespace

Result<std::unique_ptr<Step>> Step::begin(SequenceTable& table, SlabPool& pool,
                                          std::span<const PageGroup> groups,
                                          std::span<const StepItem> batch, PrefixIndex* index) {
  if (batch.empty()) return invalid_argument("a step needs at least one sequence");
  std::unique_ptr<Step> step(new Step(pool, groups));
  step->exact_workspace_.assign(groups.size(), 0);
  step->sealed_workspace_.assign(groups.size(), 0);
  for (const StepItem& item : batch) {
    const std::string name = "sequence " + std::to_string(item.sequence);
    Sequence* sequence = table.find(item.sequence);
    if (sequence == nullptr) return not_found(name + " doesn't exist");
    if (sequence->swapped != nullptr)
      return invalid_argument(name + " is swapped out; swap it in first");
    if (item.num_tokens < 1) {
      return invalid_argument(name + " appends " + std::to_string(item.num_tokens) +
                              " tokens; wanted at least 1");
    }
    if (step->find(item.sequence) >= 0) return invalid_argument(name + " is twice in one step");
    const int64_t end = sequence->length + item.num_tokens;
    if (end > kMaxSequenceTokens)
      return invalid_argument(name + " would hold " + std::to_string(end) + " tokens");
    step->sequences_.push_back({.id = item.sequence,
                                .sequence = sequence,
                                .begin = sequence->length,
                                .end = end,
                                .first_row = step->num_rows_,
                                .groups = std::vector<StepGroup>(groups.size())});
    step->num_rows_ += item.num_tokens;
  }
  for (const PageGroup& group : groups) {
    const size_t last = std::max(group.exact_class, group.sealed_class);
    if (step->needed_.size() <= last) step->needed_.resize(last + 1);
  }
  for (StepSequence& item : step->sequences_) {
    for (size_t g = 0; g < groups.size(); ++g) step->plan_group(item, g);
  }
  KVANT_TRY(index != nullptr ? index->make_room(step->needed_) : pool.check_room(step->needed_));
  KVANT_TRY(step->take_slabs());
  return step;
}

int Step::find(SequenceId id) const {
  for (size_t i = 0; i < sequences_.size(); ++i) {
    if (sequences_[i].id == id) return static_cast<int>(i);
  }
  return -1;
}

void Step::plan_group(StepSequence& item, size_t g) {
  const PageGroup& group = groups_[g];
  const ReadRule& rule = group.layout.rule;
  StepGroup& plan = item.groups[g];
  const int64_t first_written = page_of(item.begin);
  // Pages before the first written one only matter if they leave the exact window in this step.
  plan.first_page =
      rule.seals ? std::max<int64_t>(0, first_written - rule.exact_pages) : first_written;
  plan.pages.resize(static_cast<size_t>(num_pages(item.end) - plan.first_page));
  for (size_t i = 0; i < plan.pages.size(); ++i) {
    const int64_t j = plan.first_page + static_cast<int64_t>(i);
    StepPage& page = plan.pages[i];
    const HeldPage* held = held_page(item, g, j);
    page.survives = holds_page(rule, j, item.end);
    page.keeps_exact = page.survives && !reads_sealed(rule, j, page_of(item.end));
    if (held != nullptr) page.exact.slab = held->exact;
    if (j >= first_written) {
      if (held == nullptr && !page.keeps_exact) {
        page.exact.workspace = exact_workspace_[g]++;
      } else if (held == nullptr || pool_.references(held->exact) > 1) {
        page.needs_exact = true;  // a page of its own: new, or a copy of one that others share
        ++needed_[group.exact_class];
      }
    }
    const bool has_rows = page.exact.exists() || page.needs_exact;
    if (!has_rows || !seals_in_step(rule, j, item.begin, item.end)) continue;
    if (page.survives) {
      page.needs_sealed = true;
      ++needed_[group.sealed_class];
    } else {
      page.sealed.workspace = sealed_workspace_[g]++;
    }
  }
}

Status Step::take_exact(StepPage& page, uint32_t slab_class) {
  const Handle shared = page.exact.slab;
  KVANT_ASSIGN(page.exact.slab, pool_.allocate(slab_class));
  page.owns_exact = true;
  if (!shared.is_null()) {
    std::memcpy(pool_.data(page.exact.slab), pool_.data(shared), pool_.slab_bytes(slab_class));
  }
  return Status();
}

Status Step::take_slabs() {
  for (StepSequence& item : sequences_) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      for (StepPage& page : item.groups[g].pages) {
        if (page.needs_exact) KVANT_TRY(take_exact(page, groups_[g].exact_class));
        if (page.needs_sealed) {
          KVANT_ASSIGN(page.sealed.slab, pool_.allocate(groups_[g].sealed_class));
        }
      }
    }
  }
  return Status();
}

Step::~Step() {
  if (committed_) return;
  for (const StepSequence& item : sequences_) {
    for (const StepGroup& group : item.groups) {
      for (const StepPage& page : group.pages) {
        if (page.owns_exact) pool_.release(page.exact.slab);
        if (!page.sealed.slab.is_null()) pool_.release(page.sealed.slab);
      }
    }
  }
}

void Step::commit() {
  assert(!committed_);
  for (StepSequence& item : sequences_) {
    for (size_t g = 0; g < groups_.size(); ++g) commit_group(item, g);
    item.sequence->length = item.end;
  }
  committed_ = true;
}

void Step::commit_group(StepSequence& item, size_t g) {
  GroupPages& held = item.sequence->groups[g];
  const StepGroup& plan = item.groups[g];
  held.pages.resize(static_cast<size_t>(num_pages(item.end)));
  for (size_t i = 0; i < plan.pages.size(); ++i) {
    const StepPage& page = plan.pages[i];
    const int64_t j = plan.first_page + static_cast<int64_t>(i);
    if (!page.exact.exists()) continue;
    HeldPage& entry = held.pages[static_cast<size_t>(j)];
    const Handle before = entry.exact;
    entry.exact = page.keeps_exact ? page.exact.slab : Handle();
    entry.sealed = page.survives ? page.sealed.slab : Handle();
    if (page.owns_exact && !page.keeps_exact) pool_.release(page.exact.slab);
    if (!before.is_null() && before != entry.exact) pool_.release(before);
    const bool whole = item.begin <= j * kPageTokens && item.end >= (j + 1) * kPageTokens;
    if (j >= page_of(item.begin)) entry.path = whole ? PagePath::kBlock : PagePath::kRow;
  }
  const int64_t first_held = first_held_page(groups_[g].layout.rule, item.end);
  for (; held.first_held < first_held; ++held.first_held) {
    HeldPage& entry = held.pages[static_cast<size_t>(held.first_held)];
    if (!entry.sealed.is_null()) pool_.release(entry.sealed);
    if (!entry.exact.is_null()) pool_.release(entry.exact);
    entry.sealed = entry.exact = Handle();
  }
}

PagePlace Step::locate(const StepSequence& item, size_t group, int64_t page, bool sealed) const {
  const StepGroup& plan = item.groups[group];
  if (page >= plan.first_page) {
    const size_t i = static_cast<size_t>(page - plan.first_page);
    if (i >= plan.pages.size()) return PagePlace();
    const PagePlace& place = sealed ? plan.pages[i].sealed : plan.pages[i].exact;
    if (place.exists()) return place;
  }
  const HeldPage* held = held_page(item, group, page);
  if (held == nullptr) return PagePlace();
  return PagePlace{.slab = sealed ? held->sealed : held->exact};
}

void Step::count_references(std::unordered_map<uint64_t, uint32_t>& references) const {
  for (const StepSequence& item : sequences_) {
    for (const StepGroup& group : item.groups) {
      for (const StepPage& page : group.pages) {
        if (page.owns_exact) ++references[page.exact.slab.bits()];
        if (!page.sealed.slab.is_null()) ++references[page.sealed.slab.bits()];
      }
    }
  }
}

}  // namespace kvant
