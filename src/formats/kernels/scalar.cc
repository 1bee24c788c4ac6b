// The scalar page kernels: the specification of the arithmetic, in the order in which every other
// table does it too.
//
// std::fma stands exactly where the vector kernels use a fused multiply-add; sums over a row run in
// 16 lanes by index modulo 16 and are then halved pairwise. Nothing here is fast, and nothing here
// should become so.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/float_types.h"
#include "formats/kernels/numerics.h"
#include "formats/page_kernels.h"

namespace kvant::scalar {
namespace {

constexpr int kTokens = 64;
constexpr int kLanes = 16;

float reduce_add(float* lanes) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

float sum_of(const float* x, int n) {
  float lanes[kLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i % kLanes] += x[i];
  return reduce_add(lanes);
}

float dot_of(const float* x, const float* y, int n) {
  float lanes[kLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i % kLanes] = std::fma(x[i], y[i], lanes[i % kLanes]);
  return reduce_add(lanes);
}

enum class Row { kQuery, kProbabilities };

// How many steps make 1 of a row, beside codes of `bits`.
float steps_of_one(const float* x, int n, int bits, Row kind, float largest) {
  const float most = kTwoLimbMax / largest;
  if (needs_two_limbs(bits)) return most;
  if (kind == Row::kProbabilities) return kByteMax / largest;
  const float mean = std::sqrt(dot_of(x, x, n) / static_cast<float>(n));
  return std::min(std::max(kStepsOfMean / mean, kOneLimbMax / largest), most);
}

// Quantizes x to integers with one scale; bytes of probabilities are dithered. `sum` is left to the
// caller.
QuantizedRow quantize(const float* x, int n, int bits, Row kind, int16_t* out) {
  const bool dithered = kind == Row::kProbabilities && !needs_two_limbs(bits);
  float largest = 0;
  for (int i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  QuantizedRow row{};
  const float to_int = largest < kTinyMax ? 0.0f : steps_of_one(x, n, bits, kind, largest);
  row.scale = largest < kTinyMax ? 0.0f : 1.0f / to_int;
  for (int i = 0; i < n; ++i) {
    const float value = dithered ? std::fma(x[i], to_int, kDither.of_token[i]) : x[i] * to_int;
    out[i] = static_cast<int16_t>(std::lrint(value));
    row.int_sum += out[i];
  }
  return row;
}

// E8M0: 2^(e − 127), 255 is NaN.
float e8m0(uint8_t exponent) {
  return exponent == 255 ? std::numeric_limits<float>::quiet_NaN()
                         : std::ldexp(1.0f, exponent - 127);
}

// Read through binary16 (an exponent bias of 7 instead of 15: times 2^8), where the NaN codes, 0x7f
// and 0xff, would be 480: they are NaN here too.
float e4m3(uint8_t byte) {
  const unsigned nan = (byte & 0x7f) == 0x7f ? 0x7e00 : 0;
  return f16_to_f32(static_cast<uint16_t>((byte & 0x80) << 8 | (byte & 0x7f) << 7 | nan)) * 256.0f;
}

// Scales or zero points of a page as floats, one per (group, token) or per channel; all 0 where
// there are none.
std::vector<float> page_floats(const IntPage& page, const uint16_t* halves) {
  const bool per_channel = page.layout == ScaleLayout::kChannel;
  std::vector<float> out(static_cast<size_t>(per_channel ? page.dim : page.num_groups * kTokens));
  if (halves == nullptr) return out;
  const bool one = page.layout == ScaleLayout::kPage;
  for (size_t i = 0; i < out.size(); ++i) out[i] = f16_to_f32(halves[one ? 0 : i]);
  return out;
}

std::vector<float> page_scales(const IntPage& page) {
  if (page.block_scale == nullptr) return page_floats(page, page.scale);
  std::vector<float> out;
  for (int i = 0; i < page.num_groups * kTokens; ++i) {
    const uint8_t byte = page.block_scale[i];
    out.push_back((page.block_type == BlockScale::kE4m3 ? e4m3(byte) : e8m0(byte)) * page.unit);
  }
  return out;
}

// What u is less by in products with integers; what that leaves out of a value goes into `zero`.
int offset_of(const IntPage& page, const std::vector<float>& scale, std::vector<float>& zero) {
  const int middle = middle_of(page.bits, page.zero != nullptr);
  for (size_t i = 0; middle != 0 && i < zero.size(); ++i)
    zero[i] = std::fma(scale[i], static_cast<float>(middle), zero[i]);
  return page.offset + middle;
}

// The codes of a page that are places in a table.
void look_up(const IntPage& page, std::vector<uint8_t>& u) {
  if (page.levels == nullptr) return;
  for (uint8_t& code : u) code = page.levels[code];
}

// The factors of a page's tokens.
std::vector<float> page_factors(const IntPage& page) {
  std::vector<float> out(kTokens, 1.0f);
  for (size_t t = 0; page.across != nullptr && t < out.size(); ++t)
    out[t] = f16_to_f32(page.across[t]);
  if (page.factor == nullptr) return out;
  for (size_t t = 0; t < out.size(); ++t) {
    out[t] = f16_to_f32(static_cast<uint16_t>(page.factor[t] << 7));
  }
  return out;
}

size_t int_query_bytes(int num_queries, const IntShape& shape) {
  return static_cast<size_t>(num_queries) *
         query_record_bytes(shape.dim, shape.num_groups, shape.layout == ScaleLayout::kChannel);
}

void int_prepare_query(const float* queries, int num_queries, const IntShape& shape,
                       std::byte* prepared) {
  const auto [bits, dim, num_groups, layout] = shape;
  const size_t record = int_query_bytes(1, shape);
  const size_t d = static_cast<size_t>(dim);
  for (int i = 0; i < num_queries; ++i, queries += dim, prepared += record) {
    if (layout == ScaleLayout::kChannel) {
      std::memcpy(prepared, queries, d * sizeof(float));
      continue;
    }
    auto* limbs = reinterpret_cast<int16_t*>(prepared);
    auto* rows = reinterpret_cast<QuantizedRow*>(prepared + 2 * d);
    const int width = dim / num_groups;
    for (int g = 0; g < num_groups; ++g) {
      rows[g] = quantize(queries + g * width, width, bits, Row::kQuery, limbs + g * width);
      rows[g].sum = sum_of(queries + g * width, width);
    }
  }
}

float int_dot(const uint8_t* u, const int16_t* q, int n, const QuantizedRow& row, int offset) {
  int64_t sum = 0;
  for (int i = 0; i < n; ++i) sum += int64_t{q[i]} * u[i];
  return row.scale * static_cast<float>(static_cast<int32_t>(sum - int64_t{offset} * row.int_sum));
}

void int_key_scores(const IntPage& page, const std::byte* prepared, int num_queries, float* scores,
                    size_t stride) {
  const int dim = page.dim;
  const size_t d = static_cast<size_t>(dim);
  std::vector<uint8_t> u(kTokens * d);
  unpack_key_codes(page.codes, page.bits, dim, u.data());
  look_up(page, u);
  const std::vector<float> scale = page_scales(page);
  std::vector<float> zero = page_floats(page, page.zero);
  const int offset = offset_of(page, scale, zero);
  const std::vector<float> factor = page_factors(page);
  const size_t record = int_query_bytes(1, page.shape());
  for (int i = 0; i < num_queries; ++i, prepared += record, scores += stride) {
    if (page.layout == ScaleLayout::kChannel) {
      const auto* q = reinterpret_cast<const float*>(prepared);
      std::vector<float> scaled(d);
      std::vector<int16_t> limbs(d);
      for (size_t k = 0; k < d; ++k) scaled[k] = q[k] * scale[k];
      const QuantizedRow row = quantize(scaled.data(), dim, page.bits, Row::kQuery, limbs.data());
      const float constant = dot_of(q, zero.data(), dim);
      for (int t = 0; t < kTokens; ++t) {
        const float x = int_dot(u.data() + t * dim, limbs.data(), dim, row, offset);
        scores[t] = (x + constant) * factor[static_cast<size_t>(t)];
      }
      continue;
    }
    const auto* limbs = reinterpret_cast<const int16_t*>(prepared);
    const auto* rows = reinterpret_cast<const QuantizedRow*>(prepared + 2 * d);
    const int width = dim / page.num_groups;
    for (int t = 0; t < kTokens; ++t) {
      float score = 0;
      for (int g = 0; g < page.num_groups; ++g) {
        const float x =
            int_dot(u.data() + t * dim + g * width, limbs + g * width, width, rows[g], offset);
        const size_t at = static_cast<size_t>(g * kTokens + t);
        score = std::fma(scale[at], x, score);
        score = std::fma(zero[at], rows[g].sum, score);
      }
      scores[t] = score;
    }
  }
}

void int_value_accumulate(const IntPage& page, const float* p, size_t stride_p, int num_queries,
                          float* acc, size_t stride_acc) {
  const int dim = page.dim;
  std::vector<uint8_t> u(static_cast<size_t>(kTokens * dim));
  unpack_value_codes(page.codes, page.bits, dim, u.data());
  look_up(page, u);
  const std::vector<float> scale = page_scales(page);
  std::vector<float> zero = page_floats(page, page.zero);
  const int offset = offset_of(page, scale, zero);
  const bool per_channel = page.layout == ScaleLayout::kChannel;
  const std::vector<float> factor = per_channel ? page_factors(page) : std::vector<float>();
  const int num_groups = per_channel ? 1 : page.num_groups;
  const int width = dim / num_groups;
  for (int i = 0; i < num_queries; ++i, p += stride_p, acc += stride_acc) {
    for (int g = 0; g < num_groups; ++g) {
      const float* token_scale = per_channel ? factor.data() : scale.data() + g * kTokens;
      float scaled[kTokens];
      for (int t = 0; t < kTokens; ++t) scaled[t] = p[t] * token_scale[t];
      int16_t limbs[kTokens];
      QuantizedRow row = quantize(scaled, kTokens, page.bits, Row::kProbabilities, limbs);
      row.sum =
          per_channel ? sum_of(scaled, kTokens) : dot_of(p, zero.data() + g * kTokens, kTokens);
      for (int c = g * width; c < (g + 1) * width; ++c) {
        uint8_t column[kTokens];
        for (int t = 0; t < kTokens; ++t) column[t] = u[static_cast<size_t>(t * dim + c)];
        const float x = int_dot(column, limbs, kTokens, row, offset);
        const size_t at = static_cast<size_t>(c);
        if (!per_channel && page.across != nullptr) {
          acc[c] = std::fma(x + row.sum, f16_to_f32(page.across[at]), acc[c]);
          continue;
        }
        acc[c] += per_channel ? std::fma(scale[at], x, zero[at] * row.sum) : x + row.sum;
      }
    }
  }
}

// Element i of a float page.
float element(const FloatPage& page, size_t i) {
  const std::byte* at = page.data + i * float_bytes(page.type);
  const auto read16 = [&] {
    uint16_t bits;
    std::memcpy(&bits, at, sizeof(bits));
    return bits;
  };
  const auto byte = std::to_integer<uint8_t>(*at);
  switch (page.type) {
    case FloatType::kF32: {
      float value;
      std::memcpy(&value, at, sizeof(value));
      return value;
    }
    case FloatType::kF16:
      return f16_to_f32(read16());
    case FloatType::kBf16:
      return bf16_to_f32(read16());
    case FloatType::kE4m3:
      return e4m3(byte);
    case FloatType::kE5m2:
      return f16_to_f32(static_cast<uint16_t>(byte << 8));
  }
  return 0;
}

// The scale of token t; 1 where the page has none.
float token_scale(const FloatPage& page, int t) {
  if (page.scale == nullptr) return 1.0f;
  return f16_to_f32(page.scale[page.layout == ScaleLayout::kPage ? 0 : t]);
}

void float_key_scores(const FloatPage& page, const float* queries, int num_queries, float* scores,
                      size_t stride) {
  for (int i = 0; i < num_queries; ++i, queries += page.dim, scores += stride) {
    for (int t = 0; t < kTokens; ++t) {
      if (t >= page.num_tokens) {
        scores[t] = -std::numeric_limits<float>::infinity();
        continue;
      }
      const int block = page.block_scale == nullptr ? page.dim : kMxBlock;
      float score = 0;
      for (int first = 0; first < page.dim; first += block) {
        float part = 0;
        for (int k = first; k < first + block; ++k)
          part = std::fma(queries[k], element(page, static_cast<size_t>(k * kTokens + t)), part);
        if (page.block_scale == nullptr) {
          score = part * token_scale(page, t);
        } else {
          score = std::fma(part, e8m0(page.block_scale[first / block * kTokens + t]), score);
        }
      }
      scores[t] = score;
    }
  }
}

void float_value_accumulate(const FloatPage& page, const float* p, size_t stride_p, int num_queries,
                            float* acc, size_t stride_acc) {
  for (int i = 0; i < num_queries; ++i, p += stride_p, acc += stride_acc) {
    for (int t = 0; t < page.num_tokens; ++t) {
      for (int c = 0; c < page.dim; ++c) {
        const float scale = page.block_scale == nullptr
                                ? token_scale(page, t)
                                : e8m0(page.block_scale[c / kMxBlock * kTokens + t]);
        const float weight = p[t] * scale;
        acc[c] = std::fma(weight, element(page, static_cast<size_t>(t * page.dim + c)), acc[c]);
      }
    }
  }
}

void float_value_from_key(const FloatPage& page, int first, int count, const float* p,
                          size_t stride_p, int num_queries, float* acc, size_t stride_acc) {
  for (int i = 0; i < num_queries; ++i, p += stride_p, acc += stride_acc) {
    float weights[kTokens] = {};
    for (int t = 0; t < page.num_tokens; ++t) weights[t] = p[t] * token_scale(page, t);
    for (int c = 0; c < count; ++c) {
      float values[kTokens] = {};
      for (int t = 0; t < page.num_tokens; ++t) {
        values[t] = element(page, static_cast<size_t>((first + c) * kTokens + t));
      }
      acc[c] += dot_of(weights, values, kTokens);
    }
  }
}

float exp_of(float x) {
  if (x < kExpLowest) return 0;
  const auto n = static_cast<int32_t>(std::lrint(x * kLog2E));
  const auto n_float = static_cast<float>(n);
  const float r = std::fma(n_float, -kLn2Low, std::fma(n_float, -kLn2High, x));
  float series = kExpSeries[0];
  for (int i = 1; i < 8; ++i) series = std::fma(series, r, kExpSeries[i]);
  return series * std::bit_cast<float>((n + 127) << 23);
}

void exp_and_sum(float* scores, int num_rows, const float* max, float* sum) {
  for (int i = 0; i < num_rows; ++i, scores += kTokens) {
    const bool all_masked = max[i] == -std::numeric_limits<float>::infinity();
    for (int t = 0; t < kTokens; ++t) scores[t] = exp_of(scores[t] - (all_masked ? 0 : max[i]));
    sum[i] = sum_of(scores, kTokens);
  }
}

void row_max(const float* scores, int num_rows, float* max) {
  for (int i = 0; i < num_rows; ++i, scores += kTokens)
    max[i] = *std::max_element(scores, scores + kTokens);
}

void scale_row(float* acc, float factor, int n) {
  for (int i = 0; i < n; ++i) acc[i] *= factor;
}

void hadamard(float* rows, int num_rows, size_t stride, int n) {
  const float norm = 1.0f / std::sqrt(static_cast<float>(n));
  for (int r = 0; r < num_rows; ++r, rows += stride) {
    for (int half = 1; half < n; half *= 2) {
      for (int i = 0; i < n; ++i) {
        if ((i & half) != 0) continue;
        const float a = rows[i];
        const float b = rows[i + half];
        rows[i] = a + b;
        rows[i + half] = a - b;
      }
    }
    for (int i = 0; i < n; ++i) rows[i] *= norm;
  }
}

}  // namespace

extern const PageKernels kTable;
const PageKernels kTable = {
    .isa = Isa::kScalar,
    .needs_dot_products = false,
    .name = "scalar",
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

}  // namespace kvant::scalar
