// GroupLayout: where the parts of a page lie inside the slabs of one layer group.
//
// A layer group is the set of layers whose pages have the same shape, window and formats; one slab
// holds 64 tokens of all of them, so that a page is allocated, shared and freed once for the whole
// group:
//
//   slab   = [layer of the group] record
//   record = [KV head] { K part, V part (, K before RoPE: exact slabs of formats that ask for it) }
//
// Every part is a multiple of 64 bytes, so every part starts on a cache line. Sizes come from the
// attention room; this one only adds them up.
#pragma once

#include <cstddef>

#include "cache/read_rule.h"

namespace kvant {

// Bytes of one page of one head.
struct PartBytes {
  size_t key = 0;
  size_t value = 0;     // 0: values are a range of the keys
  size_t pre_rope = 0;  // 0: not stored
  size_t total() const { return key + value + pre_rope; }
};

struct GroupLayout {
  ReadRule rule;
  int num_layers = 0;
  int num_heads = 0;
  size_t token_elements = 0;  // K and V values that a token has in all layers and heads
  PartBytes exact;
  PartBytes sealed;  // all 0 where the rule never seals

  size_t exact_record_bytes() const { return static_cast<size_t>(num_heads) * exact.total(); }
  size_t sealed_record_bytes() const { return static_cast<size_t>(num_heads) * sealed.total(); }
  size_t exact_slab_bytes() const { return static_cast<size_t>(num_layers) * exact_record_bytes(); }
  size_t sealed_slab_bytes() const {
    return static_cast<size_t>(num_layers) * sealed_record_bytes();
  }
};

// Offsets inside a record.
inline size_t key_offset(const PartBytes& parts, int head) {
  return static_cast<size_t>(head) * parts.total();
}
inline size_t value_offset(const PartBytes& parts, int head) {
  return key_offset(parts, head) + parts.key;
}
inline size_t pre_rope_offset(const PartBytes& parts, int head) {
  return value_offset(parts, head) + parts.value;
}

}  // namespace kvant
