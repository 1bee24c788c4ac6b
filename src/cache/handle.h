// Handle: the name of one slab of the pool.
//
// 64 bits, {tier, class, slot, generation}: where the bytes are, which slab class (hence which
// format, layer group and size) they have, and which slot of that class. The generation changes
// whenever a slot is freed, so that a handle kept too long is recognised instead of reading another
// sequence's bytes. All zero is the null handle: a hole.
#pragma once

#include <cstdint>

namespace kvant {

class Handle {
 public:
  static constexpr int kTierBits = 4, kClassBits = 12, kSlotBits = 24, kGenerationBits = 24;
  static constexpr uint32_t kMaxSlots = 1u << kSlotBits;
  static constexpr uint32_t kMaxClasses = 1u << kClassBits;
  static constexpr uint32_t kMaxGeneration = (1u << kGenerationBits) - 1;

  Handle() = default;
  // REQUIRES each part within its bits and generation ≥ 1, which is what keeps a real handle from
  // being null.
  Handle(uint32_t tier, uint32_t slab_class, uint32_t slot, uint32_t generation)
      : bits_((static_cast<uint64_t>(tier) << 60) | (static_cast<uint64_t>(slab_class) << 48) |
              (static_cast<uint64_t>(slot) << 24) | generation) {}

  static Handle from_bits(uint64_t bits) {
    Handle handle;
    handle.bits_ = bits;
    return handle;
  }

  bool is_null() const { return bits_ == 0; }
  uint32_t tier() const { return static_cast<uint32_t>(bits_ >> 60); }
  uint32_t slab_class() const { return static_cast<uint32_t>(bits_ >> 48) & (kMaxClasses - 1); }
  uint32_t slot() const { return static_cast<uint32_t>(bits_ >> 24) & (kMaxSlots - 1); }
  uint32_t generation() const { return static_cast<uint32_t>(bits_) & kMaxGeneration; }
  uint64_t bits() const { return bits_; }

  bool operator==(const Handle&) const = default;

 private:
  uint64_t bits_ = 0;
};
static_assert(sizeof(Handle) == 8);

}  // namespace kvant
