#include "attention/exact_page.h"

#include <bit>
#include <cassert>

#include "base/bytes.h"
#include "base/float_types.h"
#include "kvant/format.h"

namespace kvant {
namespace {

struct F32 {
  using Stored = float;
  static Stored store(float x) { return x; }
  static float load(Stored x) { return x; }
};
struct F16 {
  using Stored = uint16_t;
  static Stored store(float x) { return f32_to_f16_saturated(x); }
  static float load(Stored x) { return f16_to_f32(x); }
};
struct Bf16 {
  using Stored = uint16_t;
  static Stored store(float x) {
    const uint16_t rounded = f32_to_bf16(x);
    return (rounded & 0x7fffu) == 0x7f80u ? static_cast<uint16_t>(rounded - 1) : rounded;
  }
  static float load(Stored x) { return bf16_to_f32(x); }
};

// Calls visit with the type's tag. REQUIRES an exact type.
template <typename Visit>
auto with_type(FloatType type, Visit visit) {
  if (type == FloatType::kF32) return visit(F32());
  if (type == FloatType::kF16) return visit(F16());
  assert(type == FloatType::kBf16);
  return visit(Bf16());
}

// All exponent bits set: an infinity or a NaN. Collected over many values without a branch.
uint32_t not_finite(float x) { return (std::bit_cast<uint32_t>(x) & 0x7f800000u) == 0x7f800000u; }

// Element (row r, channel c) of a page is at r·row_step + c·channel_step.
struct Steps {
  size_t row;
  size_t channel;
};
Steps key_steps(int) { return {.row = 1, .channel = kPageTokens}; }
Steps value_steps(int dim) { return {.row = static_cast<size_t>(dim), .channel = 1}; }

bool store_rows(FloatType type, const RowsView& rows, Steps steps, int first_slot,
                std::byte* page) {
  assert(first_slot >= 0 && first_slot + rows.num_rows <= kPageTokens);
  return with_type(type, [&]<typename Type>(Type) {
    auto* out = reinterpret_cast<typename Type::Stored*>(page) +
                static_cast<size_t>(first_slot) * steps.row;
    const auto dim = static_cast<size_t>(rows.dim);
    uint32_t bad = 0;
    for (size_t r = 0; r < static_cast<size_t>(rows.num_rows); ++r) {
      const float* row = rows.data + r * rows.stride;
      for (size_t c = 0; c < dim; ++c) {
        bad |= not_finite(row[c]);
        out[r * steps.row + c * steps.channel] = Type::store(row[c]);
      }
    }
    return bad == 0;
  });
}

void load_rows(FloatType type, const std::byte* page, Steps steps, int first_slot,
               const RowsOut& out) {
  assert(first_slot >= 0 && first_slot + out.num_rows <= kPageTokens);
  with_type(type, [&]<typename Type>(Type) {
    const auto* in = reinterpret_cast<const typename Type::Stored*>(page) +
                     static_cast<size_t>(first_slot) * steps.row;
    for (size_t r = 0; r < static_cast<size_t>(out.num_rows); ++r) {
      float* row = out.data + r * out.stride;
      for (size_t c = 0; c < static_cast<size_t>(out.dim); ++c) {
        row[c] = Type::load(in[r * steps.row + c * steps.channel]);
      }
    }
  });
}

}  // namespace

size_t exact_page_bytes(FloatType type, int dim) {
  return round_up(static_cast<size_t>(kPageTokens) * static_cast<size_t>(dim) * float_bytes(type),
                  kAlignment);
}

bool store_key_rows(FloatType type, const RowsView& rows, int first_slot, std::byte* page) {
  return store_rows(type, rows, key_steps(rows.dim), first_slot, page);
}
bool store_value_rows(FloatType type, const RowsView& rows, int first_slot, std::byte* page) {
  return store_rows(type, rows, value_steps(rows.dim), first_slot, page);
}
void load_key_rows(FloatType type, const std::byte* page, int first_slot, const RowsOut& out) {
  load_rows(type, page, key_steps(out.dim), first_slot, out);
}
void load_value_rows(FloatType type, const std::byte* page, int first_slot, const RowsOut& out) {
  load_rows(type, page, value_steps(out.dim), first_slot, out);
}

}  // namespace kvant
