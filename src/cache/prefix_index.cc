#include "cache/prefix_index.h"

#include <algorithm>
#include <cassert>

namespace kvant {
namespace {

// Pages that the query after `page` sees of a group, the page itself among them.
int64_t window_pages(const ReadRule& rule) {
  return rule.window == 0 ? 0 : (rule.window - 1 + kPageTokens - 1) / kPageTokens;
}

// The handle of a complete page in the state in which it stays: without an exact window that is
// decided.
Handle& held_slab(const ReadRule& rule, HeldPage& page, int64_t number) {
  return reads_sealed(rule, number, number + 1) ? page.sealed : page.exact;
}

}  // namespace

PrefixIndex::PrefixIndex(SlabPool& pool, std::span<const PageGroup> groups,
                         PrefixIndexOptions options)
    : pool_(pool), groups_(groups), options_(std::move(options)) {
  for (const PageGroup& group : groups) {
    assert(group.layout.rule.exact_pages == 0);
    reach_ = std::max(reach_, window_pages(group.layout.rule));
  }
}

PrefixIndex::~PrefixIndex() { clear(); }

Hash128 PrefixIndex::root_key(std::string_view salt) const {
  return hash(HashInput("kvant prefix root").add(options_.identity).add(salt));
}

Hash128 PrefixIndex::child_key(const Node& parent, const PageTokens& tokens, PagePath path) const {
  return hash(HashInput("kvant prefix page")
                  .add(parent.key.low)
                  .add(parent.key.high)
                  .add(static_cast<uint64_t>(path))
                  .add_all(std::span<const int32_t>(tokens)));
}

PrefixIndex::Node* PrefixIndex::find_root(std::string_view salt) const {
  const auto it = nodes_.find(root_key(salt));
  if (it == nodes_.end()) return nullptr;
  Node& node = *it->second;
  return node.page < 0 && node.salt == salt ? &node : nullptr;
}

PrefixIndex::Node* PrefixIndex::find_child(const Node& parent, const PageTokens& tokens,
                                           PagePath path) const {
  const auto it = nodes_.find(child_key(parent, tokens, path));
  if (it == nodes_.end()) return nullptr;
  Node& node = *it->second;
  const bool same = node.parent == &parent && node.path == path && node.tokens == tokens;
  return same ? &node : nullptr;
}

PrefixIndex::Node* PrefixIndex::find_published(const Sequence& sequence) const {
  if (sequence.published.pages == 0) return nullptr;
  const auto it = nodes_.find(sequence.published.last);
  if (it == nodes_.end() || it->second->page != sequence.published.pages - 1) return nullptr;
  return it->second.get();
}

PrefixIndex::Node* PrefixIndex::add_root(std::string_view salt) {
  const Hash128 key = root_key(salt);
  auto [it, is_new] = nodes_.try_emplace(key);
  if (!is_new) return nullptr;
  it->second = std::make_unique<Node>();
  it->second->key = key;
  it->second->salt = salt;
  ++num_roots_;
  return it->second.get();
}

PrefixIndex::Node* PrefixIndex::add_child(Node& parent, const PageTokens& tokens, PagePath path) {
  const Hash128 key = child_key(parent, tokens, path);
  auto [it, is_new] = nodes_.try_emplace(key);
  if (!is_new) return nullptr;
  it->second = std::make_unique<Node>();
  Node& node = *it->second;
  node.key = key;
  node.parent = &parent;
  node.page = parent.page + 1;
  node.path = path;
  node.id = next_id_++;
  node.tick = clock_;
  node.slabs.resize(groups_.size());
  node.tokens = tokens;
  place(node);
  cover_window(node, 1);
  count_child(parent, 1);
  return &node;
}

// --- What is where

bool PrefixIndex::has_sliding_slab(const Node& node) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (is_sliding(g) && !node.slabs[g].is_null()) return true;
  }
  return false;
}

void PrefixIndex::place(Node& node) {
  if (node.page < 0) return;
  if (node.num_children == 0) leaves_.insert(&node);
  if (node.covering == 0 && has_sliding_slab(node)) spares_.insert(&node);
}

void PrefixIndex::unplace(Node& node) {
  leaves_.erase(&node);
  spares_.erase(&node);
}

void PrefixIndex::cover_window(Node& anchor, int change) {
  Node* node = &anchor;
  for (int64_t i = 0; i < reach_ && node->page >= 0; ++i, node = node->parent) {
    unplace(*node);
    node->covering += change;
    place(*node);
  }
}

// A node is an anchor unless it has exactly one child.
void PrefixIndex::count_child(Node& parent, int change) {
  const bool was_anchor = parent.num_children != 1;
  unplace(parent);
  parent.num_children += change;
  place(parent);
  const bool is_anchor = parent.num_children != 1;
  if (was_anchor != is_anchor) cover_window(parent, is_anchor ? 1 : -1);
}

void PrefixIndex::touch(Node& node) {
  Node* at = &node;
  for (int64_t i = 0; i < std::max<int64_t>(reach_, 1) && at->page >= 0; ++i, at = at->parent) {
    unplace(*at);
    at->tick = clock_;
    place(*at);
  }
}

// --- Lookup and publishing

int64_t PrefixIndex::usable_pages(std::span<Node* const> chain) const {
  int64_t usable = 0;
  std::vector<int64_t> run(groups_.size(), 0);  // pages held without a gap, up to this one
  for (size_t i = 0; i < chain.size(); ++i) {
    const auto pages = static_cast<int64_t>(i) + 1;
    bool serves = true;
    for (size_t g = 0; g < groups_.size(); ++g) {
      run[g] = chain[i]->slabs[g].is_null() ? 0 : run[g] + 1;
      const int64_t first = first_held_page(groups_[g].layout.rule, pages * kPageTokens);
      serves = serves && run[g] >= pages - first;
    }
    if (serves) usable = pages;
  }
  return usable;
}

void PrefixIndex::start(Sequence& sequence, std::span<const int32_t> tokens,
                        std::string_view salt) {
  Node* const root = find_root(salt);
  if (root == nullptr || groups_.empty()) return;
  std::vector<Node*> chain;
  const Node* node = root;
  for (size_t at = 0; at + kPageTokens <= tokens.size(); at += kPageTokens) {
    PageTokens page;
    std::copy_n(tokens.begin() + static_cast<ptrdiff_t>(at), kPageTokens, page.begin());
    Node* const child = find_child(*node, page, PagePath::kBlock);
    if (child == nullptr) break;
    chain.push_back(child);
    node = child;
  }
  const int64_t pages = usable_pages(chain);
  if (pages == 0) return;
  sequence.length = pages * kPageTokens;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const ReadRule& rule = groups_[g].layout.rule;
    GroupPages& group = sequence.groups[g];
    group.pages.resize(static_cast<size_t>(pages));
    group.first_held = first_held_page(rule, sequence.length);
    for (int64_t j = 0; j < pages; ++j) {
      const Node& from = *chain[static_cast<size_t>(j)];
      HeldPage& page = group.pages[static_cast<size_t>(j)];
      page.path = from.path;
      if (j < group.first_held) continue;
      held_slab(rule, page, j) = from.slabs[g];
      pool_.retain(from.slabs[g]);
    }
  }
  Node& last = *chain[static_cast<size_t>(pages - 1)];
  sequence.published = {.pages = pages, .last = last.key, .root = root->key};
  ++clock_;
  touch(last);
}

Status PrefixIndex::adopt(Node& node, Sequence& sequence) {
  const auto held = [&](size_t g) -> Handle& {
    HeldPage& page = sequence.groups[g].pages[static_cast<size_t>(node.page)];
    return held_slab(groups_[g].layout.rule, page, node.page);
  };
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (node.slabs[g].is_null() && !held(g).is_null() && pool_.is_indexed(held(g))) {
      return invalid_argument("page " + std::to_string(node.page) +
                              " is published already, as other tokens or under another salt");
    }
  }
  unplace(node);
  for (size_t g = 0; g < groups_.size(); ++g) {
    Handle& mine = held(g);
    Handle& kept = node.slabs[g];
    if (mine.is_null() || mine == kept) continue;
    if (kept.is_null()) {
      pool_.retain_indexed(mine);
      kept = mine;
    } else {
      pool_.retain(kept);
      pool_.release(mine);
      mine = kept;
    }
  }
  place(node);
  return Status();
}

Status PrefixIndex::publish(Sequence& sequence, std::span<const int32_t> tokens,
                            std::string_view salt) {
  const int64_t pages = page_of(sequence.length);
  if (groups_.empty() || sequence.published.pages >= pages) return Status();
  const Hash128 root = root_key(salt);
  if (sequence.published.pages > 0 && !(sequence.published.root == root))
    return invalid_argument("the sequence's pages are published already, under another salt");
  Node* node = find_published(sequence);
  if (node == nullptr) node = find_root(salt);
  if (node == nullptr) node = add_root(salt);
  if (node == nullptr) return Status();  // another salt has the root's key
  ++clock_;
  Status status;
  while (node->page + 1 < pages && status.ok()) {
    const auto j = static_cast<size_t>(node->page + 1);
    const PagePath path =
        options_.paths_agree ? PagePath::kBlock : sequence.groups[0].pages[j].path;
    if (path != PagePath::kBlock) break;
    PageTokens page;
    std::copy_n(tokens.begin() + static_cast<ptrdiff_t>(j * kPageTokens), kPageTokens,
                page.begin());
    Node* child = find_child(*node, page, path);
    if (child == nullptr) child = add_child(*node, page, path);
    if (child == nullptr) break;  // other tokens have its key
    status = adopt(*child, sequence);
    node = child;
  }
  if (node->page >= 0) {
    sequence.published = {.pages = node->page + 1, .last = node->key, .root = root};
    touch(*node);
  }
  remove_empty(node);
  if (find_published(sequence) == nullptr) sequence.published = {};
  return status;
}

void PrefixIndex::for_each_published(const Sequence& sequence,
                                     const std::function<void(int64_t, size_t, Handle)>& fn) const {
  for (const Node* node = find_published(sequence); node != nullptr && node->page >= 0;
       node = node->parent) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (!node->slabs[g].is_null()) fn(node->page, g, node->slabs[g]);
    }
  }
}

// --- Eviction

void PrefixIndex::give_up(Node& node, size_t group) {
  pool_.release_indexed(node.slabs[group]);
  node.slabs[group] = Handle();
}

bool PrefixIndex::in_use(const Node& node) const {
  return std::ranges::any_of(node.slabs,
                             [this](Handle h) { return !h.is_null() && pool_.references(h) > 1; });
}

bool PrefixIndex::drop_sliding(Node& node) {
  const auto is_free = [&](size_t g) {
    return is_sliding(g) && !node.slabs[g].is_null() && pool_.references(node.slabs[g]) == 1;
  };
  size_t first = 0;
  while (first < groups_.size() && !is_free(first)) ++first;
  if (first == groups_.size()) return false;
  unplace(node);
  for (size_t g = first; g < groups_.size(); ++g) {
    if (is_free(g)) give_up(node, g);
  }
  place(node);
  return true;
}

void PrefixIndex::remove_leaf(Node& node) {
  assert(node.num_children == 0 && node.page >= 0);
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (!node.slabs[g].is_null()) {
      unplace(node);
      give_up(node, g);
    }
  }
  remove_empty(&node);
}

void PrefixIndex::remove_empty(Node* node) {
  while (node != nullptr && node->num_children == 0) {
    if (std::ranges::any_of(node->slabs, [](Handle h) { return !h.is_null(); })) return;
    Node* const parent = node->parent;
    if (parent == nullptr) {
      --num_roots_;
    } else {
      cover_window(*node, -1);
      unplace(*node);
      // Who used the end of a chain used what is before it.
      unplace(*parent);
      parent->tick = std::max(parent->tick, node->tick);
      place(*parent);
      count_child(*parent, -1);
    }
    nodes_.erase(node->key);
    node = parent;
  }
}

bool PrefixIndex::evict_spare() {
  for (Node* node : spares_) {
    if (!drop_sliding(*node)) continue;
    remove_empty(node);
    return true;  // spares_ has changed
  }
  return false;
}

bool PrefixIndex::evict_leaf() {
  for (size_t tries = leaves_.size(); tries > 0; --tries) {
    Node& node = **leaves_.begin();
    if (!in_use(node)) {
      remove_leaf(node);
      return true;
    }
    // In use now: as good as found now, and out of the way of the next search.
    unplace(node);
    node.tick = ++clock_;
    place(node);
  }
  return false;
}

void PrefixIndex::evict_left_behind(std::span<const size_t> counts) {
  std::vector<Node*> nodes;
  for (const auto& [key, node] : nodes_) {
    if (node->page >= 0 && has_sliding_slab(*node)) nodes.push_back(node.get());
  }
  std::sort(nodes.begin(), nodes.end(), Older());
  for (Node* node : nodes) {
    if (pool_.has_free(counts)) return;
    drop_sliding(*node);
    remove_empty(node);
  }
}

Status PrefixIndex::make_room(std::span<const size_t> counts) {
  KVANT_TRY(pool_.check_room(counts));
  while (!pool_.has_free(counts) && (evict_spare() || evict_leaf())) {
  }
  if (!pool_.has_free(counts)) evict_left_behind(counts);
  return Status();
}

void PrefixIndex::clear() {
  for (const auto& [key, node] : nodes_) {
    for (const Handle handle : node->slabs) {
      if (!handle.is_null()) pool_.release_indexed(handle);
    }
  }
  leaves_.clear();
  spares_.clear();
  nodes_.clear();
  num_roots_ = 0;
}

// --- For tests

void PrefixIndex::count_references(std::unordered_map<uint64_t, uint32_t>& references) const {
  for_each_slab([&](const Hash128&, int64_t, size_t, Handle h) { ++references[h.bits()]; });
}

void PrefixIndex::for_each_slab(
    const std::function<void(const Hash128&, int64_t, size_t, Handle)>& fn) const {
  for (const auto& [key, node] : nodes_) {
    for (size_t g = 0; g < node->slabs.size(); ++g) {
      if (!node->slabs[g].is_null()) fn(key, node->page, g, node->slabs[g]);
    }
  }
}

Status PrefixIndex::check_node(const Node& node) const {
  const auto wrong = [&](const char* what) {
    return internal_error("prefix index: page " + std::to_string(node.page) + " " + what);
  };
  if (node.page < 0) {
    if (!(node.key == root_key(node.salt)) || node.num_children == 0)
      return wrong("is a root without its salt's key, or without children");
    return Status();
  }
  if (!(node.key == child_key(*node.parent, node.tokens, node.path)))
    return wrong("has a key that isn't the hash of what it stands for");
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Handle handle = node.slabs[g];
    if (handle.is_null()) {
      if (!is_sliding(g)) return wrong("lacks the slab of a full group");
      continue;
    }
    const bool sealed = reads_sealed(groups_[g].layout.rule, node.page, node.page + 1);
    const uint32_t wanted = sealed ? groups_[g].sealed_class : groups_[g].exact_class;
    if (!pool_.is_live(handle) || !pool_.is_indexed(handle) || handle.slab_class() != wanted)
      return wrong("has a slab that isn't live, indexed and of the page's class");
  }
  if (node.num_children == 0 && std::ranges::all_of(node.slabs, &Handle::is_null))
    return wrong("ends a chain and holds nothing");
  Node* const self = const_cast<Node*>(&node);
  if (leaves_.contains(self) != (node.num_children == 0) ||
      spares_.contains(self) != (node.covering == 0 && has_sliding_slab(node)))
    return wrong("is in the wrong order of eviction");
  return Status();
}

Status PrefixIndex::check_invariants() const {
  std::unordered_map<const Node*, int> children, covering;
  size_t roots = 0, leaves = 0;
  for (const auto& [key, node] : nodes_) {
    KVANT_TRY(check_node(*node));
    roots += node->page < 0 ? 1 : 0;
    leaves += node->page >= 0 && node->num_children == 0 ? 1 : 0;
    if (node->parent == nullptr) continue;
    ++children[node->parent];
    if (node->num_children == 1) continue;
    const Node* at = node.get();
    for (int64_t i = 0; i < reach_ && at->page >= 0; ++i, at = at->parent) ++covering[at];
  }
  for (const auto& [key, node] : nodes_) {
    if (children[node.get()] != node->num_children || covering[node.get()] != node->covering)
      return internal_error("prefix index: children or anchors of a page don't add up");
  }
  if (roots != num_roots_ || leaves != leaves_.size())
    return internal_error("prefix index: its counts don't add up");
  return Status();
}

}  // namespace kvant
