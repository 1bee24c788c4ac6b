// Part of page_kernels.inc.h: rows of floats as rows of integers, which codes are multiplied with.
namespace kvant::KVANT_ISA {
namespace {

// What goes with the limbs of a block of queries.
template <int kQueries>
struct LimbRows {
  float scale[kQueries];     // value = scale · integer
  float constant[kQueries];  // what zero points add
  // Sums begin so that the codes' offset is out of them at the end.
  LimbView<kQueries> view;
};

template <typename Words>
KVANT_INLINE int32_t sum_start(int32_t int_sum, int offset) {
  const uint32_t bias =
      static_cast<uint32_t>(offset - Words::kBias) * static_cast<uint32_t>(int_sum);
  return static_cast<int32_t>(0 - bias);
}

// How many steps make 1 of a row of n floats.
KVANT_INLINE float steps_of_one(TwoLimbs, float largest, float, int) {
  return kTwoLimbMax / largest;
}
KVANT_INLINE float steps_of_one(Bytes, float largest, float, int) { return kByteMax / largest; }
KVANT_INLINE float steps_of_one(SparseLimbs, float largest, float sum_of_squares, int n) {
  const float mean = __builtin_sqrtf(sum_of_squares / static_cast<float>(n));
  const float steps = kStepsOfMean / mean, fewest = kOneLimbMax / largest;
  const float enough = steps < fewest ? fewest : steps, most = kTwoLimbMax / largest;
  return most < enough ? most : enough;
}

// 16 of a row's floats from place k on as integers, and those as limbs; `high`: where second limbs
// go, nullptr if all are 0.
KVANT_INLINE I32 to_integers(TwoLimbs, F32 x, F32 steps, int) { return round(mul(x, steps)); }
KVANT_INLINE I32 to_integers(SparseLimbs, F32 x, F32 steps, int) { return round(mul(x, steps)); }
KVANT_INLINE I32 to_integers(Bytes, F32 x, F32 steps, int k) {
  return round(fma(x, steps, load(kDither.of_token + k)));
}
KVANT_INLINE void store_words(TwoLimbs, I32 v, int k, std::byte* limbs, std::byte*) {
  store_limbs(limbs + 2 * k, v);
}
KVANT_INLINE void store_words(Bytes, I32 v, int k, std::byte* limbs, std::byte*) {
  store_low_bytes(limbs + k, v);
}
KVANT_INLINE void store_words(SparseLimbs, I32 v, int k, std::byte* limbs, std::byte* high) {
  store_low_bytes(limbs + k, v);
  if (high != nullptr) store_low_bytes(high + k, high_limb(v));
}

// What is known of rows before they are quantized, by lane.
template <int kRows>
struct RowSizes {
  F32 magnitude[kRows];
  F32 squares[kRows];
};
template <typename Words, int kRows>
KVANT_INLINE void add_sizes(F32 x, size_t row, RowSizes<kRows>& sizes) {
  sizes.magnitude[row] = max(abs(x), sizes.magnitude[row]);
  if constexpr (Words::kIsSparse) sizes.squares[row] = fma(x, x, sizes.squares[row]);
}

// Quantizes kRows rows of n floats (a multiple of 16) into limbs; second limbs that are stored
// apart lie n bytes further on. Gives the rows' scales, the sums of their integers and whether one
// has a second limb.
template <typename Words, bool kSums, int kRows>
KVANT_INLINE bool quantize(const RowSizes<kRows>& sizes, const float* x, size_t stride_x, int n,
                           std::byte* limbs, size_t stride, float* scale, int32_t* int_sum) {
  float largest[kRows], squares[kRows] = {};
  largest_of_each(sizes.magnitude, largest);
  if constexpr (Words::kIsSparse) sum_each(sizes.squares, squares);
  F32 steps[kRows];
  I32 sum[kRows];
  bool has_high = false;
  for (size_t i = 0; i < kRows; ++i) {
    const bool is_zero = largest[i] < kTinyMax;
    const float one = is_zero ? 0.0f : steps_of_one(Words{}, largest[i], squares[i], n);
    steps[i] = set1(one);
    scale[i] = is_zero ? 0.0f : 1.0f / one;
    sum[i] = set1(int32_t{0});
    has_high |= Words::kIsSparse && largest[i] * one > kOneLimbMax + 0.25f;
  }
  const ptrdiff_t high = has_high ? n : 0;
  for (int k = 0; k < n; k += kLanes) {
    for (size_t i = 0; i < kRows; ++i) {
      const I32 v = to_integers(Words{}, load(x + i * stride_x + k), steps[i], k);
      std::byte* const row = limbs + i * stride;
      store_words(Words{}, v, k, row, high == 0 ? nullptr : row + high);
      if constexpr (kSums) sum[i] = add(sum[i], v);
    }
  }
  if constexpr (kSums) sum_each(sum, int_sum);
  return has_high;
}

KVANT_INLINE float sum_of(const float* x, int n) {
  F32 lanes = zero();
  for (int i = 0; i < n; i += kLanes) lanes = add(lanes, load(x + i));
  return reduce_add(lanes);
}

template <typename Words>
KVANT_INLINE QuantizedRow quantize_row(const float* x, int n, std::byte* limbs) {
  RowSizes<1> sizes = {.magnitude = {zero()}, .squares = {zero()}};
  for (int i = 0; i < n; i += kLanes) add_sizes<Words>(load(x + i), 0, sizes);
  QuantizedRow row = {.scale = 0, .sum = sum_of(x, n), .int_sum = 0, .has_high = 0};
  // Rows are read together, so one without second limbs needs zeros there.
  if constexpr (Words::kIsSparse) __builtin_memset(limbs + n, 0, static_cast<size_t>(n));
  row.has_high = quantize<Words, true>(sizes, x, 0, n, limbs, 0, &row.scale, &row.int_sum);
  return row;
}

// The products row·factors of kRows rows of n floats, quantized, and what the zero points add: the
// rows' products with them or, where there are none, the sums of what is quantized.
template <typename Words, int kRows>
KVANT_INLINE LimbRows<kRows> fold(const float* x, size_t stride_x, const float* factors,
                                  const float* zeros, int n, int offset, std::byte* limbs,
                                  size_t stride) {
  alignas(64) float product[kRows][kMaxIntDim];
  RowSizes<kRows> sizes;
  F32 constant[kRows];
  for (size_t i = 0; i < kRows; ++i) sizes.magnitude[i] = sizes.squares[i] = constant[i] = zero();
  for (int k = 0; k < n; k += kLanes) {
    const F32 factor = load(factors + k);
    for (size_t i = 0; i < kRows; ++i) {
      const F32 from = load(x + i * stride_x + k);
      const F32 to = mul(from, factor);
      store(product[i] + k, to);
      add_sizes<Words>(to, i, sizes);
      constant[i] =
          zeros == nullptr ? add(constant[i], to) : fma(from, load(zeros + k), constant[i]);
    }
  }
  LimbRows<kRows> rows;
  rows.view.limbs = {limbs, stride};
  int32_t int_sum[kRows] = {};
  const bool has_high = offset == Words::kBias  // then nobody wants the sums
                            ? quantize<Words, false>(sizes, product[0], kMaxIntDim, n, limbs,
                                                     stride, rows.scale, int_sum)
                            : quantize<Words, true>(sizes, product[0], kMaxIntDim, n, limbs, stride,
                                                    rows.scale, int_sum);
  rows.view.high = has_high ? n : 0;
  sum_each(constant, rows.constant);
  for (size_t i = 0; i < kRows; ++i) rows.view.start[i] = sum_start<Words>(int_sum[i], offset);
  return rows;
}

}  // namespace
}  // namespace kvant::KVANT_ISA
