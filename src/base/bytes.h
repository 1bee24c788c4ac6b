// Owned, aligned bytes and checked size arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <span>

#include "base/huge_pages.h"

namespace kvant {

// A cache line, and the widest vector of any instruction set that we use.
inline constexpr size_t kAlignment = 64;

constexpr size_t round_up(size_t n, size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// a·b or a+b, or nothing where 64 bits don't hold it. For sizes that come from files and flags.
inline std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
  uint64_t out;
  if (__builtin_mul_overflow(a, b, &out)) return std::nullopt;
  return out;
}
inline std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  uint64_t out;
  if (__builtin_add_overflow(a, b, &out)) return std::nullopt;
  return out;
}

// Asks the memory for bytes that will be read soon: into the second-level cache.
inline void prefetch(std::span<const std::byte> bytes) {
  constexpr int kRead = 0, kSecondLevel = 2;
  for (size_t at = 0; at < bytes.size(); at += kAlignment)
    __builtin_prefetch(bytes.data() + at, kRead, kSecondLevel);
}

// An array of trivially copyable T, 64-byte aligned, not initialised. Move-only. Throws
// std::bad_alloc like new[].
template <typename T>
class AlignedArray {
 public:
  AlignedArray() = default;
  explicit AlignedArray(size_t size) : size_(size) {
    if (size == 0) return;
    void* p = std::aligned_alloc(kAlignment, round_up(size * sizeof(T), kAlignment));
    if (p == nullptr) throw std::bad_alloc();
    prefer_huge_pages(p, size * sizeof(T));
    data_.reset(static_cast<T*>(p));
  }

  // Grows to at least `size` elements; what was in it is lost when it grows.
  void reserve_discarding(size_t size) {
    if (size > size_) *this = AlignedArray(size);
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data_.get()[i]; }
  const T& operator[](size_t i) const { return data_.get()[i]; }
  std::span<T> span() { return {data(), size_}; }
  std::span<const T> span() const { return {data(), size_}; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> data_;
  size_t size_ = 0;
};

}  // namespace kvant
