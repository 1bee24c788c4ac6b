// The page kernels, written once over a vector vocabulary. Each per-ISA source defines KVANT_ISA (a
// namespace), KVANT_VOCABULARY (the vocabulary's header), KVANT_ISA_NAME and KVANT_ISA_VALUE, and
// then includes this file, which fills kvant::KVANT_ISA::kTable.
//
// kernels/scalar.cc says what is computed and in which order; here queries are taken four at a
// time, so that one load and one unpacking of the codes serves them all, and a page of codes (or
// its unpacked form) stays in the first-level cache over all blocks of queries. Nothing a query
// computes depends on its place in a block.
#include <cstddef>
#include <cstdint>

#include "formats/kernels/numerics.h"
#include "formats/page_kernels.h"
#include "simd/inline.h"
#include KVANT_VOCABULARY

namespace kvant::KVANT_ISA {
namespace {

constexpr int kTokens = 64;
constexpr int kLanes = 16;
constexpr int kMaxGroups = kMaxIntDim / kLanes;
constexpr float kInfinity = __builtin_inff();

// Asks for the cache line `distance` bytes from p, which may be anywhere: into the first-level
// cache, or the second for what is read later.
KVANT_INLINE void ask_for(const void* p, ptrdiff_t distance) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<intptr_t>(p) + distance), 0, 3);
}
KVANT_INLINE void ask_for_later(const void* p, ptrdiff_t distance) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<intptr_t>(p) + distance), 0, 2);
}

// From a page to what will be read after it; 0, so that the page asks for itself: not known.
KVANT_INLINE ptrdiff_t distance_ahead(const void* page, const void* next) {
  const auto here = reinterpret_cast<intptr_t>(page);
  return next == nullptr ? 0 : reinterpret_cast<intptr_t>(next) - here;
}

template <int kSize>
struct Block {
  static constexpr int kCount = kSize;
};

// run(Block<4>{}, first) for as many whole blocks as there are, then one smaller block.
template <typename Run>
KVANT_INLINE void for_query_blocks(int num_queries, Run run) {
  int first = 0;
  for (; first + 4 <= num_queries; first += 4) run(Block<4>{}, first);
  const int rest = num_queries - first;
  if (rest == 3) run(Block<3>{}, first);
  if (rest == 2) run(Block<2>{}, first);
  if (rest == 1) run(Block<1>{}, first);
}

template <int kRows>
KVANT_INLINE void sum_each(const F32 (&rows)[kRows], float* out) {
  if constexpr (kRows == 4) {
    reduce_add4(rows[0], rows[1], rows[2], rows[3], out);
  } else if constexpr (kRows == 3) {
    float all[4];
    reduce_add4(rows[0], rows[1], rows[2], rows[2], all);
    for (int i = 0; i < kRows; ++i) out[i] = all[i];
  } else {
    for (int i = 0; i < kRows; ++i) out[i] = reduce_add(rows[i]);
  }
}

template <int kRows>
KVANT_INLINE void largest_of_each(const F32 (&rows)[kRows], float* out) {
  if constexpr (kRows == 4) {
    reduce_max4(rows[0], rows[1], rows[2], rows[3], out);
  } else if constexpr (kRows == 3) {
    float all[4];
    reduce_max4(rows[0], rows[1], rows[2], rows[2], all);
    for (int i = 0; i < kRows; ++i) out[i] = all[i];
  } else {
    for (int i = 0; i < kRows; ++i) out[i] = reduce_max(rows[i]);
  }
}

template <int kRows>
KVANT_INLINE void sum_each(const I32 (&rows)[kRows], int32_t* out) {
  if constexpr (kRows == 4) {
    reduce_add4(rows[0], rows[1], rows[2], rows[3], out);
  } else if constexpr (kRows == 3) {
    int32_t all[4];
    reduce_add4(rows[0], rows[1], rows[2], rows[2], all);
    for (int i = 0; i < kRows; ++i) out[i] = all[i];
  } else {
    for (int i = 0; i < kRows; ++i) out[i] = reduce_add(rows[i]);
  }
}

// n halves (a multiple of 16) as floats; zeros where there are none, and n copies where `one` value
// serves all.
void widen(const uint16_t* halves, int n, bool one, float* out) {
  for (int i = 0; i < n; i += kLanes) {
    F32 x = zero();
    if (halves != nullptr && one) {
      uint16_t copies[kLanes];
      for (uint16_t& copy : copies) copy = *halves;
      x = load_f16(copies);
    } else if (halves != nullptr) {
      x = load_f16(halves + i);
    }
    store(out + i, x);
  }
}

// n E8M0 bytes as floats: 2^(e − 127), where 0 is a subnormal number and 255 NaN.
void widen_e8m0(const uint8_t* exponents, int n, float* out) {
  for (int i = 0; i < n; ++i) {
    const uint32_t e = exponents[i];
    const uint32_t bits = e << 23 | (e == 0 || e == 255 ? uint32_t{1} << 22 : 0);
    __builtin_memcpy(out + i, &bits, sizeof(bits));
  }
}

}  // namespace
}  // namespace kvant::KVANT_ISA

#include "formats/kernels/float_pages.inc.h"
#include "formats/kernels/float_rows.inc.h"
#include "formats/kernels/int_codes.inc.h"
#include "formats/kernels/int_limbs.inc.h"
#include "formats/kernels/int_pages.inc.h"

namespace kvant::KVANT_ISA {

extern const PageKernels kTable;
const PageKernels kTable = {
    .isa = KVANT_ISA_VALUE,
    .needs_dot_products = kNeedsDotProducts,
    .name = KVANT_ISA_NAME,
    .int_query_bytes = int_query_bytes,
    .int_prepare_query = int_prepare_query,
    .int_key_scores = int_key_scores,
    .int_value_accumulate = int_value_accumulate,
    .float_key_scores = float_key_scores,
    .float_value_accumulate = float_value_accumulate,
    .float_value_from_key = float_value_from_key,
    .exp_and_sum = exp_and_sum,
    .row_max = row_max,
    .scale_row = scale_row,
    .hadamard = hadamard,
};

}  // namespace kvant::KVANT_ISA
