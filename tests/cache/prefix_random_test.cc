// Pool, sequences, prefix index and swapping against a naive map: the chains that were published,
// each with what is left of its last page, in plain strings.
//
// Where every layer is full, the map also says which page goes next, and has to be right; with
// windows it says what a lookup may find at most, and exactly as long as nothing had to go. Bytes
// are compared always: a page's rows depend on all tokens before them.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cache/page_harness.h"
#include "slow_build.h"

namespace kvant {
namespace {

constexpr int kMaxPages = 7;

struct Config {
  std::vector<ReadRule> rules;
  uint64_t max_slabs;  // 0: no limit
};

class NaiveWorld {
 public:
  NaiveWorld(const Config& config, uint64_t seed)
      : config_(config),
        h_(config.rules, {.max_live_bytes = config.max_slabs * PageHarness::kSlabBytes}),
        rng_(seed) {
    for (const ReadRule& rule : config.rules) has_windows_ |= rule.window > 0;
  }

  void act() {
    const uint64_t what = rng_.below(16);
    const size_t at = sequences_.empty() ? 0 : rng_.below(sequences_.size());
    if (sequences_.size() < 2 || (what < 3 && sequences_.size() < 6)) {
      begin();
    } else if (what < 6) {
      release(at);
    } else if (what == 6 && sequences_.size() < 6) {
      fork(at);
    } else if (what == 7) {
      truncate(at);
    } else if (what == 8) {
      swap(at);
    } else {
      append(at);
    }
  }
  void check() {
    h_.check();
    for (const Live& live : sequences_) {
      if (!live.swapped) h_.check_rows(live.id, live.tokens);
    }
    ASSERT_LE(h_.index().num_pages(), chains_.size());
    if (!has_windows_) {
      ASSERT_EQ(h_.index().num_pages(), chains_.size());
    }
  }
  uint64_t num_hits() const { return num_hits_; }
  uint64_t num_evicted() const { return num_evicted_; }
  uint64_t num_exhausted() const { return num_exhausted_; }

 private:
  struct Live {
    SequenceId id = 0;
    char salt = 'a';
    std::string word;  // a letter per page
    std::vector<int32_t> tokens;
    bool swapped = false;
  };
  struct Chain {
    std::vector<bool> held;  // its last page, per group
    uint64_t used = 0;
  };

  static std::string prefix(const Live& live, int64_t pages) {
    return live.salt + live.word.substr(0, static_cast<size_t>(pages));
  }

  void begin() {
    Live live;
    live.salt = rng_.below(3) == 0 ? 'b' : 'a';
    const uint64_t pages = rng_.below(kMaxPages);
    std::vector<int> kinds;
    for (uint64_t i = 0; i < pages; ++i) {
      kinds.push_back(static_cast<int>(rng_.below(2)));
      live.word += static_cast<char>('0' + kinds.back());
    }
    live.tokens = tokens_of(kinds, static_cast<int>(rng_.below(63)) + 1);
    const int64_t expected = find(live);
    live.id = h_.start(live.tokens, std::string(1, live.salt));
    const int64_t hit = h_.sequence(live.id).length / kPageTokens;
    if (!has_windows_ || config_.max_slabs == 0) {
      ASSERT_EQ(hit, expected) << prefix(live, kMaxPages);
    } else {
      ASSERT_LE(hit, expected) << prefix(live, kMaxPages);
    }
    if (hit > 0) {
      chains_.at(prefix(live, hit)).used = ++clock_;
      ++num_hits_;
    }
    h_.check_rows(live.id, live.tokens);
    sequences_.push_back(std::move(live));
  }

  // Pages of the longest hit.
  int64_t find(const Live& live) const {
    int64_t best = 0;
    for (int64_t pages = 1; pages <= static_cast<int64_t>(live.word.size()); ++pages) {
      if (!chains_.contains(prefix(live, pages))) break;
      bool serves = true;
      for (size_t g = 0; g < config_.rules.size(); ++g) {
        for (int64_t j = 0; j < pages; ++j) {
          if (!sees_page(config_.rules[g], j, pages * kPageTokens)) continue;
          serves = serves && chains_.at(prefix(live, j + 1)).held[g];
        }
      }
      if (serves) best = pages;
    }
    return best;
  }

  void append(size_t at) {
    Live& live = sequences_[at];
    const Sequence& s = h_.sequence(live.id);
    const auto all = static_cast<int64_t>(live.tokens.size());
    if (live.swapped || s.length == all) return;
    int64_t end = s.length + static_cast<int64_t>(1 + rng_.below(3 * kPageTokens));
    if (rng_.below(2) == 0)
      end = (s.length / kPageTokens + 1 + static_cast<int64_t>(rng_.below(3))) * kPageTokens;
    end = std::min(end, all);
    const size_t before = h_.index().num_pages();
    const uint64_t cached = h_.pool().cached_bytes();
    stepping_ = live.id;
    held_before_ = s.groups[0].pages;
    const Status status = h_.append(live.id, live.tokens, end);
    const size_t evicted = before - h_.index().num_pages();
    if (!status.ok()) {
      ASSERT_EQ(status.code(), Code::kExhausted) << status.message();
      ASSERT_GT(config_.max_slabs, 0u);
      ASSERT_EQ(h_.pool().cached_bytes(), cached) << "nothing goes for what can't be had";
      ++num_exhausted_;
      return;
    }
    took_room(evicted, h_.live_in_step());
    stepping_ = 0;
    const int64_t published = s.published.pages;
    ASSERT_TRUE(h_.publish(live.id, std::span(live.tokens).first(static_cast<size_t>(end)),
                           std::string(1, live.salt))
                    .ok());
    if (published < page_of(end)) publish(live);
  }

  void publish(const Live& live) {
    const Sequence& s = h_.sequence(live.id);
    const int64_t pages = page_of(s.length);
    int64_t last = 0;
    for (int64_t j = 0; j < pages; ++j) {
      if (s.groups[0].pages[static_cast<size_t>(j)].path != PagePath::kBlock) break;
      last = j + 1;
      Chain& chain = chains_[prefix(live, last)];
      chain.held.resize(config_.rules.size());
      for (size_t g = 0; g < config_.rules.size(); ++g) {
        if (sees_page(config_.rules[g], j, s.length)) chain.held[g] = true;
      }
    }
    if (last > 0) chains_.at(prefix(live, last)).used = ++clock_;
  }

  // The index gave up so many pages: the map says which, and that one fewer wasn't enough.
  void took_room(size_t evicted, uint64_t live_bytes) {
    num_evicted_ += evicted;
    if (has_windows_) return;
    if (evicted > 0) {
      const uint64_t slack = config_.rules.size() * PageHarness::kSlabBytes;
      ASSERT_GT(live_bytes + slack, config_.max_slabs * PageHarness::kSlabBytes);
    }
    while (evicted > 0) {
      const auto oldest =
          std::min_element(chains_.begin(), chains_.end(), [this](const auto& a, const auto& b) {
            const bool a_ends = is_end(a.first), b_ends = is_end(b.first);
            return a_ends != b_ends ? a_ends : a.second.used < b.second.used;
          });
      ASSERT_TRUE(is_end(oldest->first));
      if (in_use(oldest->first)) {
        oldest->second.used = ++clock_;
        continue;
      }
      const std::string parent = oldest->first.substr(0, oldest->first.size() - 1);
      const uint64_t used = oldest->second.used;
      chains_.erase(oldest);
      if (const auto it = chains_.find(parent); it != chains_.end())
        it->second.used = std::max(it->second.used, used);
      --evicted;
    }
  }
  bool is_end(const std::string& chain) const {
    const auto next = chains_.upper_bound(chain);
    return next == chains_.end() || !next->first.starts_with(chain);
  }
  // Some sequence has the very slab that the index has, or had it when its step began.
  bool in_use(const std::string& chain) {
    const size_t page = chain.size() - 2;
    return std::ranges::any_of(sequences_, [&](const Live& live) {
      if (live.swapped || prefix(live, static_cast<int64_t>(page) + 1) != chain) return false;
      const std::vector<HeldPage>& pages =
          live.id == stepping_ ? held_before_ : h_.sequence(live.id).groups[0].pages;
      if (page >= pages.size()) return false;
      const Handle handle = pages[page].sealed.is_null() ? pages[page].exact : pages[page].sealed;
      return h_.pool().is_live(handle) && h_.pool().is_indexed(handle);
    });
  }

  void release(size_t at) {
    ASSERT_TRUE(h_.table().release(sequences_[at].id).ok());
    sequences_.erase(sequences_.begin() + static_cast<ptrdiff_t>(at));
  }

  void fork(size_t at) {
    Live live = sequences_[at];
    const int64_t length = h_.sequence(live.id).length;
    const auto cut = static_cast<int64_t>(rng_.below(static_cast<uint64_t>(length) + 1));
    const Result<KvCache::Fork> fork = h_.table().fork(live.id, cut);
    ASSERT_EQ(fork.ok(), !live.swapped);
    if (!fork.ok()) return;
    live.id = fork->sequence;
    sequences_.push_back(std::move(live));
  }

  void truncate(size_t at) {
    Live& live = sequences_[at];
    const int64_t length = h_.sequence(live.id).length;
    const auto cut = static_cast<int64_t>(rng_.below(static_cast<uint64_t>(length) + 1));
    ASSERT_EQ(h_.table().truncate(live.id, cut).ok(), !live.swapped);
  }

  void swap(size_t at) {
    Live& live = sequences_[at];
    if (!live.swapped) {
      ASSERT_TRUE(swap_out(h_.swap_context(), live.id, "").ok());
      live.swapped = true;
      return;
    }
    const size_t before = h_.index().num_pages();
    const Status status = swap_in(h_.swap_context(), live.id);
    const size_t evicted = before - h_.index().num_pages();
    if (!status.ok()) {
      ASSERT_EQ(status.code(), Code::kExhausted) << status.message();
      ASSERT_EQ(evicted, 0u);
      ++num_exhausted_;
      return;
    }
    // It held what it shares while others went.
    live.swapped = false;
    took_room(evicted, h_.pool().live_bytes());
    h_.check_rows(live.id, live.tokens);
  }

  const Config config_;
  PageHarness h_;
  Rng rng_;
  bool has_windows_ = false;
  std::vector<Live> sequences_;
  std::map<std::string, Chain> chains_;  // salt and pages → its last page
  SequenceId stepping_ = 0;              // has a step that was just taken
  std::vector<HeldPage> held_before_;    // its pages before, of the first group
  uint64_t clock_ = 0, num_hits_ = 0, num_evicted_ = 0, num_exhausted_ = 0;
};

const ReadRule kFull = {.seals = true, .sink_pages = 1};

std::vector<Config> configs() {
  return {{{kFull}, 0},
          {{kFull}, 24},
          {{kFull, {.seals = false}}, 40},
          {{{.seals = true, .window = 65}, kFull}, 0},
          {{{.seals = true, .window = 65}, kFull}, 40},
          {{{.seals = true, .sink_pages = 1, .window = 130},
            {.seals = false, .window = 4},
            {.seals = true}},
           60},
          {{{.seals = true, .window = 100}}, 16},
          {{{.seals = true, .sink_pages = 2, .window = 1}, kFull}, 40}};
}

// A million in a release, over all of them.
TEST(PrefixRandom, AMillionActsEqualANaiveMap) {
  const int acts = kSlowBuild ? 3000 : 125000;
  uint64_t seed = 1;
  for (const Config& config : configs()) {
    SCOPED_TRACE("configuration and seed " + std::to_string(seed));
    NaiveWorld world(config, seed++);
    for (int i = 0; i < acts; ++i) {
      world.act();
      if (i % (kSlowBuild ? 16 : 256) == 0) world.check();
      ASSERT_FALSE(testing::Test::HasFatalFailure()) << "act " << i;
    }
    EXPECT_GT(world.num_hits(), static_cast<uint64_t>(acts) / 100);
    if (config.max_slabs > 0) {
      EXPECT_GT(world.num_evicted() + world.num_exhausted(), 0u);
    }
  }
}

}  // namespace
}  // namespace kvant
