// Page tables under test without formats: a page's bytes say which tokens it holds, exact rows as
// they are and sealed ones inverted, and a hash of all that came before, so that a page of another
// chain is never mistaken for one's own.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "cache/prefix_index.h"
#include "cache/sequence_table.h"
#include "cache/slab_pool.h"
#include "cache/step.h"
#include "cache/swap.h"

namespace kvant {

// One layer, whose rows have 32 bits; sealed pages are as large as exact ones.
inline GroupLayout layout_of(const ReadRule& rule) {
  return {.rule = rule,
          .num_layers = 1,
          .num_heads = 1,
          .token_elements = 1,
          .exact = {.key = kPageTokens * sizeof(uint32_t)},
          .sealed = {.key = rule.seals ? kPageTokens * sizeof(uint32_t) : 0}};
}

// A group per rule, with classes of its own in the pool.
inline std::vector<PageGroup> groups_of(const std::vector<ReadRule>& rules, SlabPool& pool) {
  std::vector<PageGroup> groups;
  for (const ReadRule& rule : rules) {
    PageGroup group{.layout = layout_of(rule)};
    group.exact_class = pool.add_class(group.layout.exact_slab_bytes(), SlabKind::kExact);
    if (rule.seals)
      group.sealed_class = pool.add_class(group.layout.sealed_slab_bytes(), SlabKind::kSealed);
    groups.push_back(group);
  }
  return groups;
}

class PageHarness {
 public:
  static constexpr uint64_t kSlabBytes = kPageTokens * sizeof(uint32_t);

  PageHarness(const std::vector<ReadRule>& rules, PoolOptions options,
              PrefixIndexOptions prefix = {})
      : pool_(options), groups_(groups_of(rules, pool_)) {
    table_ = std::make_unique<SequenceTable>(pool_, groups_);
    index_ = std::make_unique<PrefixIndex>(pool_, groups_, std::move(prefix));
  }
  SlabPool& pool() { return pool_; }
  SequenceTable& table() { return *table_; }
  PrefixIndex& index() { return *index_; }
  const std::vector<PageGroup>& groups() const { return groups_; }
  Sequence& sequence(SequenceId id) { return *table_->find(id); }
  SwapContext swap_context() {
    return {pool_, *table_, groups_, index_.get(), "0123456789abcdef0123456789abcdef"};
  }

  // Appends the tokens of `tokens` that the sequence hasn't yet, up to `end`, in one step.
  Status append(SequenceId id, std::span<const int32_t> tokens, int64_t end) {
    const int64_t begin = sequence(id).length;
    const StepItem item{id, static_cast<int>(end - begin)};
    Result<std::unique_ptr<Step>> step =
        Step::begin(*table_, pool_, groups_, {&item, 1}, index_.get());
    if (!step.ok()) return step.status();
    live_in_step_ = pool_.live_bytes();
    write(**step, tokens);
    (*step)->commit();
    return {};
  }
  Status publish(SequenceId id, std::span<const int32_t> tokens, std::string_view salt = "") {
    return index_->publish(sequence(id), tokens, salt);
  }
  // A new sequence from the index; how many tokens it has is its length.
  SequenceId start(std::span<const int32_t> tokens, std::string_view salt = "") {
    const SequenceId id = table_->create();
    index_->start(sequence(id), tokens, salt);
    return id;
  }
  // A sequence of these tokens, in steps of `chunk`, published after each.
  SequenceId read(std::span<const int32_t> tokens, int64_t chunk = 512,
                  std::string_view salt = "") {
    const SequenceId id = start(tokens, salt);
    const auto length = static_cast<int64_t>(tokens.size());
    while (sequence(id).length < length) {
      const int64_t end = std::min(length, sequence(id).length + chunk);
      const Status status = append(id, tokens, end);
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(publish(id, tokens.first(static_cast<size_t>(end)), salt).ok());
    }
    return id;
  }
  // The same, and it is gone.
  void visit(std::span<const int32_t> tokens, int64_t chunk = 512, std::string_view salt = "") {
    ASSERT_TRUE(table_->release(read(tokens, chunk, salt)).ok());
  }
  // Tokens that a sequence of these would start with.
  int64_t hit(std::span<const int32_t> tokens, std::string_view salt = "") {
    const SequenceId id = start(tokens, salt);
    const int64_t length = sequence(id).length;
    EXPECT_TRUE(table_->release(id).ok());
    return length;
  }

  // Of the pool, while the last step ran.
  uint64_t live_in_step() const { return live_in_step_; }

  // Every page that the sequence's next query sees holds what it stands for.
  void check_rows(SequenceId id, std::span<const int32_t> tokens) {
    const Sequence& s = sequence(id);
    ASSERT_LE(s.length, static_cast<int64_t>(tokens.size()));
    const std::vector<uint32_t> rows = rows_of(tokens.first(static_cast<size_t>(s.length)));
    for (size_t g = 0; g < groups_.size(); ++g) {
      const ReadRule& rule = groups_[g].layout.rule;
      for (int64_t t = first_visible(rule, s.length); t < s.length; ++t) {
        const HeldPage& page = s.groups[g].pages[static_cast<size_t>(page_of(t))];
        const bool sealed = reads_sealed(rule, page_of(t), page_of(s.length));
        const Handle handle = sealed ? page.sealed : page.exact;
        ASSERT_TRUE(pool_.is_live(handle)) << "group " << g << " position " << t;
        const uint32_t stored =
            reinterpret_cast<const uint32_t*>(pool_.data(handle))[t % kPageTokens];
        ASSERT_EQ(sealed ? ~stored : stored, rows[static_cast<size_t>(t)])
            << "group " << g << " position " << t;
      }
    }
  }

  void check() {
    for (const Status& status :
         {pool_.check_invariants(), table_->check_invariants(), index_->check_invariants()}) {
      ASSERT_TRUE(status.ok()) << status.message();
    }
    std::unordered_map<uint64_t, uint32_t> references;
    table_->count_references(references);
    index_->count_references(references);
    ASSERT_EQ(references.size(), pool_.live_slabs());
    for (const auto& [bits, count] : references)
      ASSERT_EQ(pool_.references(Handle::from_bits(bits)), count);
  }

 private:
  // A token's row: a hash of the chain up to it.
  static std::vector<uint32_t> rows_of(std::span<const int32_t> tokens) {
    std::vector<uint32_t> rows;
    uint64_t h = 7;
    for (const int32_t token : tokens) {
      h = mix64(h ^ static_cast<uint64_t>(token));
      rows.push_back(static_cast<uint32_t>(h));
    }
    return rows;
  }

  void write(const Step& step, std::span<const int32_t> tokens) {
    std::vector<std::vector<uint32_t>> exact(groups_.size()), sealed(groups_.size());
    for (size_t g = 0; g < groups_.size(); ++g) {
      exact[g].resize(static_cast<size_t>(step.num_exact_workspace(g)) * kPageTokens);
      sealed[g].resize(static_cast<size_t>(step.num_sealed_workspace(g)) * kPageTokens);
    }
    const auto bytes = [&](size_t g, const PagePlace& place, bool is_sealed) {
      if (!place.slab.is_null()) return reinterpret_cast<uint32_t*>(pool_.data(place.slab));
      return (is_sealed ? sealed : exact)[g].data() +
             static_cast<size_t>(place.workspace) * kPageTokens;
    };
    for (const StepSequence& item : step.sequences()) {
      const std::vector<uint32_t> rows = rows_of(tokens.first(static_cast<size_t>(item.end)));
      for (size_t g = 0; g < groups_.size(); ++g) {
        for (int64_t t = item.begin; t < item.end; ++t) {
          bytes(g, step.locate(item, g, page_of(t), false), false)[t % kPageTokens] =
              rows[static_cast<size_t>(t)];
        }
        for (const StepPage& page : item.groups[g].pages) {
          if (!page.sealed.exists()) continue;
          const uint32_t* from = bytes(g, page.exact, false);
          uint32_t* to = bytes(g, page.sealed, true);
          for (int s = 0; s < kPageTokens; ++s) to[s] = ~from[s];
        }
      }
    }
  }

  SlabPool pool_;
  std::vector<PageGroup> groups_;
  std::unique_ptr<SequenceTable> table_;
  std::unique_ptr<PrefixIndex> index_;
  uint64_t live_in_step_ = 0;
};

// Page j is filled with kinds[j], and so many tokens more follow.
inline std::vector<int32_t> tokens_of(const std::vector<int>& kinds, int tail = 0) {
  std::vector<int32_t> tokens;
  for (const int kind : kinds) tokens.insert(tokens.end(), kPageTokens, kind);
  tokens.insert(tokens.end(), static_cast<size_t>(tail), 99);
  return tokens;
}

}  // namespace kvant
