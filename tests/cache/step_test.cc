// Sequences and steps against a naive model: every page carries a mark of the tokens that were
// written to it, and each sequence is also kept as a plain list.
#include "cache/step.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "cache/page_harness.h"

namespace kvant {
namespace {

constexpr int64_t kT = kPageTokens;

// A record is one token id per slot, so that a page's bytes say whose it is.
class Harness {
 public:
  Harness(const std::vector<ReadRule>& rules, PoolOptions options)
      : pool_(options), groups_(groups_of(rules, pool_)) {
    table_ = std::make_unique<SequenceTable>(pool_, groups_);
  }

  SequenceTable& table() { return *table_; }
  SlabPool& pool() { return pool_; }
  std::map<SequenceId, std::vector<uint32_t>>& model() { return model_; }

  SequenceId create() {
    const SequenceId id = table_->create();
    model_[id];
    return id;
  }

  Result<std::unique_ptr<Step>> begin(const std::vector<StepItem>& batch) {
    return Step::begin(*table_, pool_, groups_, batch);
  }

  // Appends fresh tokens; writes and seals pages as the cache does, and checks what the step's
  // queries would see.
  void write(const Step& step) {
    std::vector<std::vector<uint32_t>> exact_workspace(groups_.size()),
        sealed_workspace(groups_.size());
    for (size_t g = 0; g < groups_.size(); ++g) {
      exact_workspace[g].resize(static_cast<size_t>(step.num_exact_workspace(g)) * 64, 0xdeadbeef);
      sealed_workspace[g].resize(static_cast<size_t>(step.num_sealed_workspace(g)) * 64,
                                 0xdeadbeef);
    }
    const auto bytes = [&](size_t g, const PagePlace& place, bool sealed) {
      if (!place.slab.is_null()) return reinterpret_cast<uint32_t*>(pool_.data(place.slab));
      return (sealed ? sealed_workspace : exact_workspace)[g].data() +
             static_cast<size_t>(place.workspace) * 64;
    };
    for (const StepSequence& item : step.sequences()) {
      std::vector<uint32_t> tokens = model_[item.id];
      for (int64_t t = item.begin; t < item.end; ++t) tokens.push_back(next_token_++);
      for (size_t g = 0; g < groups_.size(); ++g) {
        const ReadRule& rule = groups_[g].layout.rule;
        for (int64_t t = item.begin; t < item.end; ++t) {
          bytes(g, step.locate(item, g, page_of(t), false), false)[t % kT] =
              tokens[static_cast<size_t>(t)];
        }
        const StepGroup& plan = item.groups[g];
        for (size_t i = 0; i < plan.pages.size(); ++i) {
          if (!plan.pages[i].sealed.exists()) continue;
          const uint32_t* exact = bytes(g, plan.pages[i].exact, false);
          uint32_t* sealed = bytes(g, plan.pages[i].sealed, true);
          for (int s = 0; s < kT; ++s) sealed[s] = ~exact[s];
        }
        for (int64_t t = item.begin; t < item.end; ++t) {
          for (int64_t p = first_visible(rule, t); p <= t; ++p) {
            const bool sealed = reads_sealed(rule, page_of(p), page_of(t));
            const PagePlace place = step.locate(item, g, page_of(p), sealed);
            ASSERT_TRUE(place.exists()) << "query " << t << " position " << p;
            const uint32_t stored = bytes(g, place, sealed)[p % kT];
            ASSERT_EQ(sealed ? ~stored : stored, tokens[static_cast<size_t>(p)])
                << "query " << t << " position " << p;
          }
        }
      }
      pending_[item.id] = std::move(tokens);
    }
  }
  void commit(Step& step) {
    step.commit();
    for (auto& [id, tokens] : pending_) model_[id] = std::move(tokens);
    pending_.clear();
  }
  void abort() { pending_.clear(); }

  // A whole step.
  void append(const std::vector<StepItem>& batch) {
    auto step = begin(batch);
    ASSERT_TRUE(step.ok()) << step.status().message();
    write(**step);
    commit(**step);
  }
  // A new sequence of that many tokens, read in one step.
  SequenceId create(int num_tokens) {
    const SequenceId id = create();
    append({{id, num_tokens}});
    return id;
  }

  void check(const Step* step = nullptr) {
    for (const Status& status : {pool_.check_invariants(), table_->check_invariants()}) {
      ASSERT_TRUE(status.ok()) << status.message();
    }
    std::unordered_map<uint64_t, uint32_t> references;
    table_->count_references(references);
    if (step != nullptr) step->count_references(references);
    ASSERT_EQ(references.size(), pool_.live_slabs());
    for (const auto& [bits, count] : references)
      ASSERT_EQ(pool_.references(Handle::from_bits(bits)), count);
    for (const auto& [id, tokens] : model_) {
      ASSERT_EQ(table_->find(id)->length, static_cast<int64_t>(tokens.size()));
      uint64_t sealed = 0, exact = 0;
      for (const PageGroup& g : groups_) {
        const PageCounts counts = held_pages(g.layout.rule, static_cast<int64_t>(tokens.size()));
        sealed += static_cast<uint64_t>(counts.sealed);
        exact += static_cast<uint64_t>(counts.exact);
      }
      for (const GroupPages& g : table_->find(id)->groups) {
        for (const HeldPage& page : g.pages) {
          sealed -= page.sealed.is_null() ? 0 : 1;
          exact -= page.exact.is_null() ? 0 : 1;
        }
      }
      ASSERT_EQ(sealed, 0u);
      ASSERT_EQ(exact, 0u);
    }
  }

 private:
  SlabPool pool_;
  std::vector<PageGroup> groups_;
  std::unique_ptr<SequenceTable> table_;
  std::map<SequenceId, std::vector<uint32_t>> model_, pending_;
  uint32_t next_token_ = 1;
};

std::vector<std::vector<ReadRule>> rule_sets() {
  return {{{.seals = true, .sink_pages = 1}},
          {{.seals = false}},
          {{.seals = true, .sink_pages = 0, .exact_pages = 2}, {.seals = false, .window = 100}},
          {{.seals = true, .sink_pages = 1, .window = 8}, {.seals = true, .sink_pages = 1}},
          {{.seals = true, .sink_pages = 1, .exact_pages = 1, .window = 200},
           {.seals = true, .window = 1}}};
}

TEST(Step, RandomUseEqualsANaiveModel) {
  for (uint64_t seed = 0; seed < 15; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    Harness h(rule_sets()[seed % rule_sets().size()],
              {.max_live_bytes = seed % 3 == 0 ? 60u * 256 : 0, .fill = 0x7f});
    std::vector<SequenceId> ids;
    for (int round = 0; round < 150; ++round) {
      const uint64_t act = rng.below(10);
      const size_t at = ids.empty() ? 0 : rng.below(ids.size());
      if (ids.size() < 2 || (act == 0 && ids.size() < 8)) {
        ids.push_back(h.create());
      } else if (act == 1) {
        ASSERT_TRUE(h.table().release(ids[at]).ok());
        h.model().erase(ids[at]);
        ids.erase(ids.begin() + static_cast<ptrdiff_t>(at));
      } else if (act == 2 && ids.size() < 8) {
        const std::vector<uint32_t>& tokens = h.model()[ids[at]];
        const auto cut = static_cast<int64_t>(rng.below(tokens.size() + 1));
        const KvCache::Fork fork = h.table().fork(ids[at], cut).value();
        ASSERT_LE(fork.rollback.kept, cut);
        h.model()[fork.sequence] = {tokens.begin(), tokens.begin() + fork.rollback.kept};
        ids.push_back(fork.sequence);
      } else if (act == 3) {
        std::vector<uint32_t>& tokens = h.model()[ids[at]];
        const auto cut = static_cast<int64_t>(tokens.size()) -
                         static_cast<int64_t>(rng.below(tokens.size() + 1) / 3);
        const Rollback rollback = h.table().truncate(ids[at], cut).value();
        ASSERT_LE(rollback.kept, cut);
        tokens.resize(static_cast<size_t>(rollback.kept));
      } else {
        std::vector<StepItem> batch;
        for (const SequenceId id : ids) {
          if (rng.below(2) == 0) continue;
          const int sizes[] = {1, 1, 5, 64, 150};
          batch.push_back({.sequence = id, .num_tokens = sizes[rng.below(5)]});
        }
        if (batch.empty()) continue;
        const uint64_t live = h.pool().live_bytes();
        auto step = h.begin(batch);
        if (!step.ok()) {
          ASSERT_EQ(step.status().code(), Code::kExhausted) << step.status().message();
          ASSERT_EQ(h.pool().live_bytes(), live);
        } else {
          h.write(**step);
          ASSERT_FALSE(HasFatalFailure());
          h.check(step->get());
          if (act == 4) {
            h.abort();
          } else {
            h.commit(**step);
          }
          step->reset();
          if (act == 4) {
            ASSERT_EQ(h.pool().live_bytes(), live);
          }
        }
      }
      h.check();
      ASSERT_FALSE(HasFatalFailure()) << "round " << round;
    }
  }
}

TEST(Step, ExhaustionLeavesEverythingAsItWas) {
  Harness h({{.seals = true, .sink_pages = 1}}, {.max_live_bytes = 4 * 256});
  const SequenceId a = h.create(130);
  const uint64_t live = h.pool().live_bytes();
  const auto refused = h.begin({{a, 200}});
  EXPECT_EQ(refused.status().code(), Code::kExhausted);
  EXPECT_NE(refused.status().message().find("needed"), std::string::npos);
  EXPECT_EQ(h.pool().live_bytes(), live);
  EXPECT_EQ(h.table().find(a)->length, 130);
  h.check();
}

TEST(Step, RefusesEmptyRepeatedAndUnknownItems) {
  Harness h({{.seals = false}}, {});
  const SequenceId a = h.create();
  EXPECT_EQ(h.begin({}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(h.begin({{a, 1}, {a, 1}}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(h.begin({{a, 0}}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(h.begin({{a + 100, 1}}).status().code(), Code::kNotFound);
}

TEST(Step, RecordsTheDensePathOfEveryPage) {
  Harness h({{.seals = true}}, {});
  const SequenceId a = h.create();
  for (const int tokens : {64, 30, 98, 1}) h.append({{a, tokens}});
  const std::vector<HeldPage>& pages = h.table().find(a)->groups[0].pages;
  ASSERT_EQ(pages.size(), 4u);
  EXPECT_EQ(pages[0].path, PagePath::kBlock);
  EXPECT_EQ(pages[1].path, PagePath::kRow);    // 30 tokens, then the rest
  EXPECT_EQ(pages[2].path, PagePath::kBlock);  // whole in the step of 98
  EXPECT_EQ(pages[3].path, PagePath::kRow);
}

TEST(Sequences, ForksShareSealedPagesAndCopyTheOpenOneOnWrite) {
  Harness h({{.seals = true, .sink_pages = 1}}, {});
  const SequenceId a = h.create(200);
  const size_t before = h.pool().live_slabs();
  const KvCache::Fork fork = h.table().fork(a, 200).value();
  h.model()[fork.sequence] = h.model()[a];
  EXPECT_EQ(fork.rollback.kept, 200);
  EXPECT_EQ(h.pool().live_slabs(), before);
  h.append({{a, 1}, {fork.sequence, 1}});
  EXPECT_EQ(h.pool().live_slabs(), before + 1);
  h.check();
  ASSERT_TRUE(h.table().release(a).ok());
  ASSERT_TRUE(h.table().release(fork.sequence).ok());
  EXPECT_EQ(h.pool().live_slabs(), 0u);
}

TEST(Sequences, ACutInsideASealedPageGoesBackToItsStart) {
  Harness h({{.seals = true, .sink_pages = 1}}, {});
  const SequenceId a = h.create(200);
  EXPECT_EQ(h.table().fork(a, 195).value().rollback.kept, 195) << "the open page is exact";
  EXPECT_EQ(h.table().fork(a, 150).value().rollback.kept, 128) << "page 2 is sealed";
  EXPECT_EQ(h.table().fork(a, 40).value().rollback.kept, 40) << "page 0 is a sink";
  EXPECT_EQ(h.table().truncate(a, 100).value().kept, 64);
  EXPECT_EQ(h.table().truncate(a, 65).status().code(), Code::kInvalidArgument)
      << "longer than it is";
}

TEST(Sequences, AnExactWindowSendsACutBackToTheSinks) {
  Harness h({{.seals = true, .sink_pages = 1, .exact_pages = 1}}, {});
  const SequenceId a = h.create(400);
  EXPECT_EQ(h.table().fork(a, 390).value().rollback.kept, 390);
  // The query at 330 reads page 4 exact, but only its codes are left; from 64 on everything is as
  // in a fresh sequence.
  EXPECT_EQ(h.table().fork(a, 330).value().rollback.kept, 64);
}

TEST(Sequences, ACutBehindASlidingWindowGoesBackToNothing) {
  Harness h({{.seals = false, .window = 100}}, {});
  const SequenceId a = h.create(400);
  EXPECT_EQ(h.table().fork(a, 390).value().rollback.kept, 390);
  EXPECT_EQ(h.table().truncate(a, 350).value().kept, 0);
  EXPECT_EQ(h.pool().live_slabs(), 3u) << "the fork's pages";
}

}  // namespace
}  // namespace kvant
