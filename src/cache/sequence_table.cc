#include "cache/sequence_table.h"

#include <algorithm>
#include <string>

namespace kvant {
namespace {

Status no_sequence(SequenceId id) {
  return not_found("sequence " + std::to_string(id) + " doesn't exist");
}

Status is_swapped(SequenceId id) {
  return invalid_argument("sequence " + std::to_string(id) + " is swapped out; swap it in first");
}

Status bad_cut(SequenceId id, int64_t tokens, int64_t length) {
  return invalid_argument("sequence " + std::to_string(id) + " can't be cut at " +
                          std::to_string(tokens) + " tokens; wanted 0 to its length, " +
                          std::to_string(length));
}

template <typename Visit>
void for_each_handle(const Sequence& sequence, Visit visit) {
  for (const GroupPages& group : sequence.groups) {
    for (size_t j = static_cast<size_t>(group.first_held); j < group.pages.size(); ++j) {
      if (!group.pages[j].sealed.is_null()) visit(group.pages[j].sealed);
      if (!group.pages[j].exact.is_null()) visit(group.pages[j].exact);
    }
  }
}

}  // namespace

SequenceTable::~SequenceTable() {
  for (const auto& [id, sequence] : sequences_) release_pages(sequence);
}

SequenceId SequenceTable::create() {
  const SequenceId id = next_id_++;
  sequences_[id].groups.resize(groups_.size());
  return id;
}

void SequenceTable::release_pages(const Sequence& sequence) {
  for_each_handle(sequence, [this](Handle h) { pool_.release(h); });
}

Status SequenceTable::release(SequenceId id) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return no_sequence(id);
  release_pages(it->second);
  sequences_.erase(it);
  return Status();
}

void SequenceTable::swap_out(Sequence& sequence, std::unique_ptr<SwappedPages> pages) {
  release_pages(sequence);
  for (GroupPages& group : sequence.groups) {
    for (HeldPage& page : group.pages) page.sealed = page.exact = Handle();
  }
  sequence.swapped = std::move(pages);
}

Sequence* SequenceTable::find(SequenceId id) {
  const auto it = sequences_.find(id);
  return it == sequences_.end() ? nullptr : &it->second;
}

const Sequence* SequenceTable::find(SequenceId id) const {
  const auto it = sequences_.find(id);
  return it == sequences_.end() ? nullptr : &it->second;
}

bool SequenceTable::can_continue_from(const Sequence& sequence, int64_t tokens) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const ReadRule& rule = groups_[g].layout.rule;
    const std::vector<HeldPage>& pages = sequence.groups[g].pages;
    // From the end: what a cut lacks is most often the page before it.
    for (int64_t j = num_pages(tokens) - 1; j >= first_held_page(rule, tokens); --j) {
      const HeldPage& page = pages[static_cast<size_t>(j)];
      const Handle wanted = reads_sealed(rule, j, page_of(tokens)) ? page.sealed : page.exact;
      if (wanted.is_null()) return false;
    }
  }
  return true;
}

int64_t SequenceTable::largest_cut(const Sequence& sequence, int64_t tokens) const {
  // Inside a page that only exists sealed there is nothing to go on from, so page starts come next.
  // Which of them serve differs by group: with an exact window, those among the sinks; with a
  // sliding window, those whose pages remain.
  if (can_continue_from(sequence, tokens)) return tokens;
  for (int64_t page = page_of(tokens); page > 0; --page) {
    if (can_continue_from(sequence, page * kPageTokens)) return page * kPageTokens;
  }
  return 0;
}

Result<KvCache::Fork> SequenceTable::fork(SequenceId id, int64_t tokens) {
  const Sequence* parent = find(id);
  if (parent == nullptr) return no_sequence(id);
  if (parent->swapped != nullptr) return is_swapped(id);
  if (tokens < 0 || tokens > parent->length) return bad_cut(id, tokens, parent->length);
  const int64_t kept = largest_cut(*parent, tokens);
  Sequence child;
  child.length = kept;
  if (parent->published.pages <= page_of(kept)) child.published = parent->published;
  child.groups.resize(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    GroupPages& to = child.groups[g];
    to.pages.resize(static_cast<size_t>(num_pages(kept)));
    to.first_held = first_held_page(groups_[g].layout.rule, kept);
    for (size_t j = 0; j < to.pages.size(); ++j) {
      const HeldPage& from = parent->groups[g].pages[j];
      to.pages[j].path = from.path;
      if (static_cast<int64_t>(j) < to.first_held) continue;
      to.pages[j] = from;
      pool_.retain(to.pages[j].sealed.is_null() ? to.pages[j].exact : to.pages[j].sealed);
    }
  }
  const SequenceId child_id = next_id_++;
  sequences_.emplace(child_id, std::move(child));
  return KvCache::Fork{.sequence = child_id, .rollback = {.kept = kept}};
}

Result<Rollback> SequenceTable::truncate(SequenceId id, int64_t tokens) {
  Sequence* sequence = find(id);
  if (sequence == nullptr) return no_sequence(id);
  if (sequence->swapped != nullptr) return is_swapped(id);
  if (tokens < 0 || tokens > sequence->length) return bad_cut(id, tokens, sequence->length);
  const int64_t kept = largest_cut(*sequence, tokens);
  for (GroupPages& group : sequence->groups) {
    const auto end = static_cast<size_t>(num_pages(kept));
    for (size_t j = std::max(end, static_cast<size_t>(group.first_held)); j < group.pages.size();
         ++j) {
      pool_.release(group.pages[j].sealed.is_null() ? group.pages[j].exact : group.pages[j].sealed);
    }
    group.pages.resize(end);
    group.first_held = std::min(group.first_held, num_pages(kept));
  }
  sequence->length = kept;
  if (sequence->published.pages > page_of(kept)) sequence->published = {};
  return Rollback{.kept = kept};
}

void SequenceTable::count_references(std::unordered_map<uint64_t, uint32_t>& references) const {
  for (const auto& [id, sequence] : sequences_) {
    for_each_handle(sequence, [&](Handle h) { ++references[h.bits()]; });
  }
}

Status SequenceTable::check_invariants() const {
  for (const auto& [id, sequence] : sequences_) {
    const std::string name = "sequence " + std::to_string(id) + ": ";
    if (sequence.groups.size() != groups_.size())
      return internal_error(name + "wrong number of groups");
    for (size_t g = 0; g < groups_.size(); ++g) {
      const GroupPages& group = sequence.groups[g];
      const ReadRule& rule = groups_[g].layout.rule;
      if (static_cast<int64_t>(group.pages.size()) != num_pages(sequence.length)) {
        return internal_error(name + "its page table doesn't fit its length");
      }
      if (group.first_held != first_held_page(rule, sequence.length)) {
        return internal_error(name + "the pages that it holds aren't those of its window");
      }
      for (int64_t j = 0; j < static_cast<int64_t>(group.pages.size()); ++j) {
        const HeldPage& page = group.pages[static_cast<size_t>(j)];
        const bool held = j >= group.first_held && sequence.swapped == nullptr;
        const bool sealed = held && reads_sealed(rule, j, page_of(sequence.length));
        if (page.sealed.is_null() == sealed || page.exact.is_null() == (held && !sealed)) {
          return internal_error(name + "page " + std::to_string(j) +
                                " isn't in the state that the read rule asks for");
        }
        if (held && !pool_.is_live(sealed ? page.sealed : page.exact)) {
          return internal_error(name + "page " + std::to_string(j) +
                                " has a handle that isn't live");
        }
      }
    }
  }
  return Status();
}

}  // namespace kvant
