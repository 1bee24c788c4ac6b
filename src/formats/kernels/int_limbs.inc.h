// Part of page_kernels.inc.h: rows of floats as rows of integers, which codes are multiplied with.
namespace kvant::KVANT_ISA {
namespace {

// What goes with the limbs of a block of queries.
template <int kQueries>
struct LimbRows {
  float scale[kQueries];     // value = scale · integer
  float constant[kQueries];  // what zero points add
  int32_t start[kQueries];  // where sums begin, so that the codes' offset is out of them at the end
};

KVANT_INLINE int32_t sum_start(int32_t int_sum, int offset) {
  const uint32_t bias = static_cast<uint32_t>(offset - kCodeBias) * static_cast<uint32_t>(int_sum);
  return static_cast<int32_t>(0 - bias);
}

template <size_t kTiles, int kQueries>
KVANT_INLINE void start_sums(const LimbRows<kQueries>& rows, Acc (&acc)[kTiles][kQueries]) {
  for (size_t i = 0; i < kQueries; ++i) {
    const Acc start = start_acc(rows.start[i]);
    for (size_t j = 0; j < kTiles; ++j) acc[j][i] = start;
  }
}

// Quantizes kRows rows of n floats (a multiple of 16), whose largest magnitudes by lane are known,
// into limbs; gives the rows' scales and the sums of their integers.
template <bool kSums, int kRows>
KVANT_INLINE void quantize(const F32 (&magnitude)[kRows], const float* x, size_t stride_x, int n,
                           std::byte* limbs, size_t stride, float* scale, int32_t* int_sum) {
  float largest[kRows];
  largest_of_each(magnitude, largest);
  F32 to_int[kRows];
  I32 sum[kRows];
  for (size_t i = 0; i < kRows; ++i) {
    const bool is_zero = largest[i] < kTinyMax;
    to_int[i] = set1(is_zero ? 0.0f : kLimbMax / largest[i]);
    scale[i] = is_zero ? 0.0f : largest[i] / kLimbMax;
    sum[i] = set1(int32_t{0});
  }
  for (int k = 0; k < n; k += kLanes) {
    for (size_t i = 0; i < kRows; ++i) {
      const I32 v = round(mul(load(x + i * stride_x + k), to_int[i]));
      store_limbs(limbs + i * stride + 2 * k, v);
      if constexpr (kSums) sum[i] = add(sum[i], v);
    }
  }
  if constexpr (kSums) sum_each(sum, int_sum);
}

KVANT_INLINE float sum_of(const float* x, int n) {
  F32 lanes = zero();
  for (int i = 0; i < n; i += kLanes) lanes = add(lanes, load(x + i));
  return reduce_add(lanes);
}

KVANT_INLINE QuantizedRow quantize_row(const float* x, int n, std::byte* limbs) {
  F32 magnitude[1] = {zero()};
  for (int i = 0; i < n; i += kLanes) magnitude[0] = max(abs(load(x + i)), magnitude[0]);
  QuantizedRow row = {.scale = 0, .sum = sum_of(x, n), .int_sum = 0, .reserved = 0};
  quantize<true>(magnitude, x, 0, n, limbs, 0, &row.scale, &row.int_sum);
  return row;
}

// The products row·factors of kRows rows of n floats, quantized, and what the zero points add: the
// rows' products with them or, where there are none, the sums of what is quantized.
template <int kRows>
KVANT_INLINE LimbRows<kRows> fold(const float* x, size_t stride_x, const float* factors,
                                  const float* zeros, int n, int offset, std::byte* limbs,
                                  size_t stride) {
  alignas(64) float product[kRows][kMaxIntDim];
  F32 magnitude[kRows], constant[kRows];
  for (size_t i = 0; i < kRows; ++i) magnitude[i] = constant[i] = zero();
  for (int k = 0; k < n; k += kLanes) {
    const F32 factor = load(factors + k);
    for (size_t i = 0; i < kRows; ++i) {
      const F32 from = load(x + i * stride_x + k);
      const F32 to = mul(from, factor);
      store(product[i] + k, to);
      magnitude[i] = max(abs(to), magnitude[i]);
      constant[i] =
          zeros == nullptr ? add(constant[i], to) : fma(from, load(zeros + k), constant[i]);
    }
  }
  LimbRows<kRows> rows;
  int32_t int_sum[kRows] = {};
  if (offset == kCodeBias) {  // then nobody wants the sums
    quantize<false>(magnitude, product[0], kMaxIntDim, n, limbs, stride, rows.scale, int_sum);
  } else {
    quantize<true>(magnitude, product[0], kMaxIntDim, n, limbs, stride, rows.scale, int_sum);
  }
  sum_each(constant, rows.constant);
  for (size_t i = 0; i < kRows; ++i) rows.start[i] = sum_start(int_sum[i], offset);
  return rows;
}

}  // namespace
}  // namespace kvant::KVANT_ISA
