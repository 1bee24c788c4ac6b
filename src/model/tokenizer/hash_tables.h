// Open-addressing tables for what a tokenizer looks up millions of times: a pair of ids, and a
// token's text.
//
// Built once at load, then read-only. std::unordered_map takes three times the load time at 262k
// tokens.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace kvant::tokenizer {

// 64-bit keys to values V. The key ~0 is reserved for empty slots.
template <typename V>
class KeyTable {
 public:
  void reserve(size_t num_keys) { rehash(std::bit_ceil(num_keys * 2 + 2)); }

  // Keeps the first value of a key; false if it was there.
  bool insert(uint64_t key, const V& value) {
    if ((size_ + 1) * 2 > slots_.size()) rehash(std::bit_ceil((size_ + 8) * 2));
    Slot& slot = slots_[find_slot(key)];
    if (slot.key == key) return false;
    slot = {key, value};
    ++size_;
    return true;
  }
  // Valid until the next insert; nullptr: not there.
  const V* find(uint64_t key) const {
    if (size_ == 0) return nullptr;
    const Slot& slot = slots_[find_slot(key)];
    return slot.key == key ? &slot.value : nullptr;
  }
  V* find(uint64_t key) { return const_cast<V*>(std::as_const(*this).find(key)); }
  size_t size() const { return size_; }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t key = kEmpty;
    V value{};
  };

  size_t find_slot(uint64_t key) const {
    size_t i = mix64(key) & (slots_.size() - 1);
    while (slots_[i].key != kEmpty && slots_[i].key != key) i = (i + 1) & (slots_.size() - 1);
    return i;
  }
  void rehash(size_t num_slots) {
    if (num_slots <= slots_.size()) return;
    std::vector<Slot> old(num_slots);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.key != kEmpty) slots_[find_slot(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

// A good 64-bit hash of a short string: eight bytes at a time.
inline uint64_t hash_bytes(std::string_view text) {
  uint64_t h = 0x9e3779b97f4a7c15ull ^ text.size();
  const char* p = text.data();
  size_t n = text.size();
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    h = (h ^ word) * 0xbf58476d1ce4e5b9ull;
    h ^= h >> 29;
  }
  uint64_t tail = 0;
  std::memcpy(&tail, p, n);
  return mix64(h ^ tail);
}

}  // namespace kvant::tokenizer
