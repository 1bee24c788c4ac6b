// Step: the growth of a batch of sequences by some tokens, as a transaction on page tables.
//
// begin() decides for every page that the step touches where its exact rows are written, whether it
// is sealed and where to, and takes every slab that this needs, or takes none. Until commit() the
// sequences are unchanged, so abort() only gives back what begin() took. Rows and codes of pages
// that no longer exist in that form after the step (complete pages of a long chunk; pages that a
// window drops at its end) go to *workspace* pages, numbered per group, which the owner of the step
// keeps for one layer at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/sequence_table.h"
#include "kvant/status.h"

namespace kvant {

class PrefixIndex;

// Where one state of a page is: in a slab, in a workspace page of its group, or nowhere.
struct PagePlace {
  Handle slab;
  int workspace = -1;
  bool exists() const { return !slab.is_null() || workspace >= 0; }
};

// What the step does to one page.
struct StepPage {
  PagePlace exact;
  PagePlace sealed;  // exists: the page is sealed in this step, from `exact`
  bool needs_exact =
      false;  // a slab for its exact rows has to be taken; `exact.slab`, if any, is then copied
  bool needs_sealed = false;  // a slab for its codes has to be taken
  bool owns_exact = false;    // `exact.slab` was taken by this step
  bool keeps_exact = false;   // exact after the step too
  bool survives = false;      // held after the step
};

struct StepGroup {
  int64_t first_page = 0;
  std::vector<StepPage> pages;  // of the page numbers from first_page on
  // REQUIRES a page that the step touches.
  const StepPage& written(int64_t page) const {
    return pages[static_cast<size_t>(page - first_page)];
  }
};

struct StepSequence {
  SequenceId id = 0;
  Sequence* sequence = nullptr;
  int64_t begin = 0;  // positions [begin, end) are appended
  int64_t end = 0;
  int64_t first_row = 0;  // of this sequence in the step's rows
  std::vector<StepGroup> groups;
};

class Step {
 public:
  // Changes nothing on failure. `table`, `pool` and `groups` outlive the step. `index` gives up
  // cached pages where the step needs their room; null: there are none.
  static Result<std::unique_ptr<Step>> begin(SequenceTable& table, SlabPool& pool,
                                             std::span<const PageGroup> groups,
                                             std::span<const StepItem> batch,
                                             PrefixIndex* index = nullptr);
  // Gives back what begin() took, unless committed.
  ~Step();
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  void commit();

  std::span<const StepSequence> sequences() const { return sequences_; }
  // Index into sequences(), or −1.
  int find(SequenceId id) const;
  int64_t num_rows() const { return num_rows_; }
  int num_exact_workspace(size_t group) const { return exact_workspace_[group]; }
  int num_sealed_workspace(size_t group) const { return sealed_workspace_[group]; }

  // Where `page` of a sequence of the step is, exact or sealed, while the step runs.
  PagePlace locate(const StepSequence& item, size_t group, int64_t page, bool sealed) const;

  void count_references(std::unordered_map<uint64_t, uint32_t>& references) const;

 private:
  Step(SlabPool& pool, std::span<const PageGroup> groups) : pool_(pool), groups_(groups) {}
  void plan_group(StepSequence& item, size_t group);
  Status take_slabs();
  Status take_exact(StepPage& page, uint32_t slab_class);
  void commit_group(StepSequence& item, size_t group);

  SlabPool& pool_;
  std::span<const PageGroup> groups_;
  std::vector<StepSequence> sequences_;
  std::vector<int> exact_workspace_, sealed_workspace_;
  std::vector<size_t> needed_;  // slabs per class
  int64_t num_rows_ = 0;
  bool committed_ = false;
};

}  // namespace kvant
