// Part of page_kernels.inc.h: the pieces of softmax, and the Walsh–Hadamard transform.
namespace kvant::KVANT_ISA {
namespace {

KVANT_INLINE F32 exp_of(F32 x) {
  // Where x is a NaN the maximum is x, so that the result is a NaN too.
  const F32 clamped = max(set1(kExpLowest), x);
  const I32 exponent = round(mul(clamped, set1(kLog2E)));
  const F32 n = to_float(exponent);
  const F32 r = fma(n, set1(-kLn2Low), fma(n, set1(-kLn2High), clamped));
  F32 series = set1(kExpSeries[0]);
  for (int i = 1; i < 8; ++i) series = fma(series, r, set1(kExpSeries[i]));
  return zero_below(x, kExpLowest, mul(series, power_of_two(exponent)));
}

void exp_and_sum(float* scores, int num_rows, const float* max_scores, float* sums) {
  for_query_blocks(num_rows, [&](auto block, int first) KVANT_INLINE_LAMBDA {
    float* rows = scores + static_cast<size_t>(first) * kTokens;
    F32 shift[block.kCount], lanes[block.kCount];
    for (size_t i = 0; i < block.kCount; ++i) {
      const float max_score = max_scores[static_cast<size_t>(first) + i];
      shift[i] = set1(max_score == -kInfinity ? 0.0f : max_score);
      lanes[i] = zero();
    }
    for (int t = 0; t < kTokens; t += kLanes) {
      for (size_t i = 0; i < block.kCount; ++i) {
        const F32 e = exp_of(sub(load(rows + i * kTokens + t), shift[i]));
        store(rows + i * kTokens + t, e);
        lanes[i] = add(lanes[i], e);
      }
    }
    sum_each(lanes, sums + first);
  });
}

void row_max(const float* scores, int num_rows, float* max_scores) {
  for_query_blocks(num_rows, [&](auto block, int first) KVANT_INLINE_LAMBDA {
    F32 largest[block.kCount];
    for (size_t i = 0; i < block.kCount; ++i) {
      const float* row = scores + (static_cast<size_t>(first) + i) * kTokens;
      largest[i] = load(row);
      for (int t = kLanes; t < kTokens; t += kLanes) largest[i] = max(largest[i], load(row + t));
    }
    largest_of_each(largest, max_scores + first);
  });
}

void scale_row(float* acc, float factor, int n) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(acc + i, mul(load(acc + i), set1(factor)));
  for (; i < n; ++i) acc[i] *= factor;
}

// Stages of distance 16 and more, between vectors.
KVANT_INLINE void hadamard_far(float* row, int n) {
  for (int half = kLanes; half < n; half *= 2) {
    for (int i = 0; i < n; i += kLanes) {
      if ((i & half) != 0) continue;
      const F32 a = load(row + i);
      const F32 b = load(row + i + half);
      store(row + i, add(a, b));
      store(row + i + half, sub(a, b));
    }
  }
}

KVANT_INLINE void hadamard_short(float* row, int n) {
  for (int half = 1; half < n; half *= 2) {
    for (int i = 0; i < n; ++i) {
      if ((i & half) != 0) continue;
      const float a = row[i];
      const float b = row[i + half];
      row[i] = a + b;
      row[i + half] = a - b;
    }
  }
}

void hadamard(float* rows, int num_rows, size_t stride, int n) {
  const float norm = 1.0f / __builtin_sqrtf(static_cast<float>(n));
  for (int r = 0; r < num_rows; ++r, rows += stride) {
    if (n < kLanes) {
      hadamard_short(rows, n);
    } else {
      for (int i = 0; i < n; i += kLanes) {
        store(rows + i, butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(load(rows + i))))));
      }
      hadamard_far(rows, n);
    }
    scale_row(rows, norm, n);
  }
}

}  // namespace
}  // namespace kvant::KVANT_ISA
