// PrefixIndex: complete pages that later sequences may begin with, found by the tokens they stand
// for.
//
// Pages form chains. A page's key is the hash of its parent's key, its 64 tokens and its dense
// path; the first page's parent is the root of a tenant's salt under the cache's identity. A node
// holds a reference to the page's slab of every layer group that still had it when it was
// published; so pages outlive their sequences, unchanged, and cost what they cost there.
//
// **Windows.** The query after a hit of n tokens sees all earlier pages of a full layer, but of a
// sliding one only those of its window. A hit is usable if all of these are there; so it may begin
// at some lengths and not at others, and lookups take the longest that works. A chain is entered
// most often at its end (the same prompt again, one turn more) and where chains part (another
// question after the same instructions). These nodes are *anchors*. Pages of sliding groups that
// lie in no anchor's window are *spare*: they serve hits in the middle of a chain, which may come,
// but are the first to go when room is needed.
//
// **Eviction.** Only slabs that nobody else refers to are freed. First spare ones, least recently
// used first, deepest first; then whole ends of chains, least recently used first, so that no page
// goes before those behind it; then, where all ends are in use by sequences whose windows have
// moved on, what these windows left behind.
//
// Invariants (check_invariants):
//  1. A node is the only one with its key; its key is the hash of what it stands for.
//  2. A node has a slab in every group without a window; a node without children has some slab.
//  3. leaves_ are the nodes without children; covering is the number of anchors whose window holds
//     a node's page; spares_ are the nodes with a slab of a sliding group and covering = 0.
//  4. The pool knows a slab as indexed if and only if a node holds it, once.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "cache/sequence_table.h"
#include "cache/slab_pool.h"
#include "kvant/status.h"

namespace kvant {

struct PrefixIndexOptions {
  std::string identity = {};                           // of the cache
  bool paths_agree = false;                            // pages of both dense paths are the same
  std::function<Hash128(const HashInput&)> hash = {};  // tests: keys that collide
};

class PrefixIndex {
 public:
  // Both outlive the index.
  PrefixIndex(SlabPool& pool, std::span<const PageGroup> groups, PrefixIndexOptions options);
  ~PrefixIndex();  // gives up every slab
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // Gives an empty sequence the longest usable prefix; its length says how long it is. O(tokens).
  void start(Sequence& sequence, std::span<const int32_t> tokens, std::string_view salt);
  // Takes the sequence's complete pages, up to the first that came by the row path unless paths
  // agree: no lookup could find those behind it. REQUIRES tokens.size() ≥ sequence.length.
  // O(new pages). invalid_argument where a page is published already as other tokens or under
  // another salt; those before it are published then.
  Status publish(Sequence& sequence, std::span<const int32_t> tokens, std::string_view salt);
  // Whether what the sequence has published is there still.
  bool has_published(const Sequence& sequence) const { return find_published(sequence) != nullptr; }
  // Calls fn(page, group, handle) for the slabs that are left of what a sequence has published.
  void for_each_published(const Sequence& sequence,
                          const std::function<void(int64_t, size_t, Handle)>& fn) const;

  // Frees slabs until counts[c] of every class c can be had, or none if that can't be reached.
  Status make_room(std::span<const size_t> counts);
  void clear();

  size_t num_pages() const { return nodes_.size() - num_roots_; }
  void count_references(std::unordered_map<uint64_t, uint32_t>& references) const;
  // Calls fn(key, page, group, handle) for every slab, in no order.
  void for_each_slab(const std::function<void(const Hash128&, int64_t, size_t, Handle)>& fn) const;
  Status check_invariants() const;

 private:
  using PageTokens = std::array<int32_t, kPageTokens>;
  struct Node {
    Hash128 key;
    Node* parent = nullptr;  // nullptr: the root of a salt
    int64_t page = -1;
    PagePath path = PagePath::kBlock;
    uint64_t id = 0;    // in order of creation
    uint64_t tick = 0;  // of its last use
    int num_children = 0;
    int covering = 0;
    std::vector<Handle> slabs;  // one per group; null: not held
    std::string salt;           // of a root
    PageTokens tokens = {};
  };
  struct Older {  // the order of spares_
    bool operator()(const Node* a, const Node* b) const {
      return std::tuple(a->tick, -a->page, a->id) < std::tuple(b->tick, -b->page, b->id);
    }
  };

  Hash128 hash(const HashInput& input) const {
    return options_.hash ? options_.hash(input) : input.hash();
  }
  Hash128 root_key(std::string_view salt) const;
  Hash128 child_key(const Node& parent, const PageTokens& tokens, PagePath path) const;
  Node* find_root(std::string_view salt) const;
  Node* find_child(const Node& parent, const PageTokens& tokens, PagePath path) const;
  Node* find_published(const Sequence& sequence) const;
  // nullptr where another page or salt has the key already.
  Node* add_root(std::string_view salt);
  Node* add_child(Node& parent, const PageTokens& tokens, PagePath path);
  Status adopt(Node& node, Sequence& sequence);
  int64_t usable_pages(std::span<Node* const> chain) const;

  void touch(Node& node);  // used now, and what its window sees
  bool is_sliding(size_t group) const { return groups_[group].layout.rule.window > 0; }
  bool has_sliding_slab(const Node& node) const;
  void cover_window(Node& anchor, int change);
  void count_child(Node& parent, int change);
  void place(Node& node);    // into leaves_ and spares_, where it belongs
  void unplace(Node& node);  // out of both, before anything that decides it changes
  void give_up(Node& node, size_t group);
  bool in_use(const Node& node) const;
  bool drop_sliding(Node& node);
  void remove_leaf(Node& node);
  // The node and its ancestors as far as they have neither slabs nor children.
  void remove_empty(Node* node);
  bool evict_spare();
  bool evict_leaf();
  void evict_left_behind(std::span<const size_t> counts);
  Status check_node(const Node& node) const;

  SlabPool& pool_;
  std::span<const PageGroup> groups_;
  PrefixIndexOptions options_;
  int64_t reach_ = 0;  // pages of the widest window
  std::unordered_map<Hash128, std::unique_ptr<Node>> nodes_;
  size_t num_roots_ = 0;
  std::set<Node*, Older> leaves_, spares_;
  uint64_t clock_ = 0, next_id_ = 0;
};

}  // namespace kvant
