// Pages, queries and probabilities for the kernel tests: made from a seed, with traps (outliers,
// tiny rows, garbage in every bit that must not matter).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/float_types.h"
#include "base/rng.h"
#include "formats/page_kernels.h"
#include "kvant/format.h"

namespace kvant::test {

inline constexpr size_t kTokens = 64;

inline float uniform(Rng& random) { return static_cast<float>(random.uniform()); }

struct IntCase {
  Side side;
  int bits;
  int dim;
  int num_groups;
  ScaleLayout layout;
  bool zero_point;
  bool factor = false;  // one per token, of kChannel
  bool across = false;  // binary16 along the other axis
  bool blocks = false;  // block scales of `block_type`
  BlockScale block_type = BlockScale::kE4m3;
  bool levels = false;  // codes are places in a table
};

inline std::ostream& operator<<(std::ostream& out, const IntCase& c) {
  static constexpr const char* kLayouts[] = {"page", "token", "channel"};
  return out << (c.side == Side::kKey ? "K" : "V") << " int" << c.bits << " d" << c.dim << " "
             << kLayouts[static_cast<int>(c.layout)] << " groups " << c.num_groups
             << (c.zero_point ? " zero" : "") << (c.factor ? " factor" : "")
             << (c.across ? " across" : "") << (c.levels ? " levels" : "")
             << (!c.blocks                           ? ""
                 : c.block_type == BlockScale::kE4m3 ? " e4m3"
                                                     : " e8m0");
}

// Block scales, tables of codes, and factors along the other axis.
inline std::vector<IntCase> block_cases(Side side, std::initializer_list<int> dims) {
  std::vector<IntCase> out;
  for (int dim : dims) {
    for (int group : {16, 32}) {
      if (dim % group != 0) continue;
      IntCase c = {side, 4, dim, dim / group, ScaleLayout::kToken, false};
      c.levels = true;
      out.push_back(c);
      c.blocks = true;
      out.push_back(c);
      c.block_type = BlockScale::kE8m0;
      out.push_back(c);
      c.levels = false;
      out.push_back(c);
    }
    for (int bits : {4, 3, 2}) {
      IntCase c = {side, bits, dim, 1, ScaleLayout::kChannel, true};
      c.across = true;
      out.push_back(c);
      c.layout = ScaleLayout::kToken;
      if (side == Side::kValue) out.push_back(c);
    }
  }
  return out;
}

// Every combination of width, head size, layout, groups and zero points that a codec may bind.
inline std::vector<IntCase> all_int_cases(Side side, std::initializer_list<int> dims) {
  std::vector<IntCase> out;
  for (int bits = 2; bits <= 8; ++bits) {
    for (int dim : dims) {
      for (bool zero : {false, true}) {
        if (!int_dim_fits(bits, zero ? 0 : 1 << (bits - 1), dim)) continue;
        out.push_back({side, bits, dim, 1, ScaleLayout::kPage, zero});
        out.push_back({side, bits, dim, 1, ScaleLayout::kChannel, zero});
        out.push_back({side, bits, dim, 1, ScaleLayout::kChannel, zero, true});
        out.push_back({side, bits, dim, 1, ScaleLayout::kToken, zero});
        for (int group : {16, 32, 64, 128}) {
          if (dim % group == 0 && group < dim)
            out.push_back({side, bits, dim, dim / group, ScaleLayout::kToken, zero});
        }
      }
    }
  }
  const std::vector<IntCase> blocks = block_cases(side, dims);
  out.insert(out.end(), blocks.begin(), blocks.end());
  return out;
}

// A page that owns its bytes. The codes' unused bits and bytes hold garbage.
struct OwnedIntPage {
  AlignedArray<uint8_t> codes;
  std::vector<uint16_t> scale;
  std::vector<uint16_t> zero;
  std::vector<uint8_t> factor;
  std::vector<uint16_t> across;
  std::vector<uint8_t> block_scale;
  std::vector<uint8_t> levels;
  std::vector<uint8_t> u;  // [64][dim], what the packed codes stand for
  IntPage page;

  // Scale number `at`, by plain arithmetic.
  double scale_at(size_t at) const {
    if (page.block_scale == nullptr) return static_cast<double>(f16_to_f32(scale[at]));
    const int byte = block_scale[at];
    if (page.block_type == BlockScale::kE8m0)
      return std::ldexp(static_cast<double>(page.unit), byte - 127);
    const int exponent = byte >> 3 & 15, mantissa = byte & 7;
    const double size =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    return size * static_cast<double>(page.unit);
  }
};

inline OwnedIntPage make_int_page(const IntCase& c, Rng& random) {
  OwnedIntPage out;
  const bool key = c.side == Side::kKey;
  const auto dim = static_cast<size_t>(c.dim);
  const size_t bytes = key ? key_code_bytes(c.bits, c.dim) : value_code_bytes(c.bits, c.dim);
  const auto pack = key ? pack_key_codes : pack_value_codes;
  out.codes = AlignedArray<uint8_t>(bytes);
  AlignedArray<uint8_t> used(bytes);
  out.u.assign(kTokens * dim, static_cast<uint8_t>((1 << c.bits) - 1));
  pack(out.u.data(), c.bits, c.dim, used.data());
  for (uint8_t& u : out.u) u = static_cast<uint8_t>(random.next() >> (64 - c.bits));
  pack(out.u.data(), c.bits, c.dim, out.codes.data());
  for (size_t i = 0; i < bytes; ++i) {
    out.codes[i] =
        static_cast<uint8_t>(out.codes[i] | (random.next() & static_cast<uint8_t>(~used[i])));
  }
  const size_t count = c.layout == ScaleLayout::kPage ? 1
                       : c.layout == ScaleLayout::kChannel
                           ? dim
                           : kTokens * static_cast<size_t>(c.num_groups);
  for (size_t i = 0; i < count; ++i) {
    out.scale.push_back(f32_to_f16(0.001f + 0.05f * uniform(random)));
    if (c.zero_point) out.zero.push_back(f32_to_f16(random.normal()));
  }
  if (count > 2) out.scale[1] = 0;  // a constant row: all of it is in the zero point
  const size_t width = c.layout == ScaleLayout::kChannel ? kTokens : dim;
  for (size_t i = 0; c.across && i < width; ++i)
    out.across.push_back(f32_to_f16(0.1f + 2.0f * uniform(random)));
  for (size_t i = 0; c.blocks && i < count; ++i) {
    const bool e4m3 = c.block_type == BlockScale::kE4m3;
    out.block_scale.push_back(static_cast<uint8_t>(e4m3 ? random.below(0x60)  // subnormal ones too
                                                        : 110 + random.below(12)));
  }
  if (c.blocks && c.block_type == BlockScale::kE8m0) out.block_scale[1] = 0;
  for (int i = 0; c.levels && i < 16; ++i)
    out.levels.push_back(static_cast<uint8_t>(random.below(25)));
  for (uint8_t& u : out.u) u = c.levels ? out.levels[u] : u;
  // 1/16 to 15: the bits of a binary16 without its sign and its last seven bits.
  for (size_t t = 0; c.factor && t < kTokens; ++t)
    out.factor.push_back(static_cast<uint8_t>(0x58 + random.next() % 0x40));
  out.page = {.codes = out.codes.data(),
              .scale = out.scale.data(),
              .zero = c.zero_point ? out.zero.data() : nullptr,
              .factor = c.factor ? out.factor.data() : nullptr,
              .bits = c.bits,
              .offset = c.levels       ? 12
                        : c.zero_point ? 0
                                       : 1 << (c.bits - 1),
              .dim = c.dim,
              .num_groups = c.num_groups,
              .layout = c.layout,
              .across = c.across ? out.across.data() : nullptr,
              .block_scale = c.blocks ? out.block_scale.data() : nullptr,
              .block_type = c.block_type,
              .unit = c.blocks ? 0.37f : 1.0f,
              .levels = c.levels ? out.levels.data() : nullptr};
  return out;
}

// Queries with a few outliers; every fifth is tiny, every seventh zero.
inline std::vector<float> make_queries(size_t count, size_t dim, Rng& random) {
  std::vector<float> out(count * dim);
  for (size_t i = 0; i < count; ++i) {
    const float size = i % 7 == 6 ? 0.0f : (i % 5 == 4 ? 1e-33f : 0.3f);
    for (size_t d = 0; d < dim; ++d) out[i * dim + d] = size * random.normal();
    out[i * dim + random.next() % dim] *= 20.0f;
  }
  return out;
}

// Rows of 64 probabilities, some peaked, some with exact zeros, one all zero.
inline std::vector<float> make_probabilities(size_t count, size_t stride, Rng& random) {
  std::vector<float> out(count * stride, std::numeric_limits<float>::quiet_NaN());
  for (size_t i = 0; i < count; ++i) {
    for (size_t t = 0; t < kTokens; ++t) {
      const float p = std::exp(static_cast<float>(1 + i % 4) * 3.0f * (uniform(random) - 1.0f));
      out[i * stride + t] = i % 7 == 6 || (i % 3 == 1 && t >= 40) ? 0.0f : p;
    }
  }
  return out;
}

struct FloatCase {
  FloatType type;
  int dim;
  int num_tokens;
  bool scaled;
  ScaleLayout layout;
  bool blocks = false;  // E8M0 scales of 32 channels
};

inline std::ostream& operator<<(std::ostream& out, const FloatCase& c) {
  static constexpr const char* kTypes[] = {"f32", "f16", "bf16", "e4m3", "e5m2"};
  return out << kTypes[static_cast<int>(c.type)] << " d" << c.dim << " tokens " << c.num_tokens
             << (c.blocks                         ? " blocks"
                 : !c.scaled                      ? ""
                 : c.layout == ScaleLayout::kPage ? " page scale"
                                                  : " token scale");
}

inline std::vector<FloatCase> all_float_cases(std::initializer_list<int> dims) {
  std::vector<FloatCase> out;
  for (FloatType type :
       {FloatType::kF32, FloatType::kF16, FloatType::kBf16, FloatType::kE4m3, FloatType::kE5m2}) {
    for (int dim : dims) {
      for (int tokens : {1, 15, 16, 33, 64}) {
        out.push_back({type, dim, tokens, false, ScaleLayout::kPage});
        out.push_back({type, dim, tokens, true, ScaleLayout::kPage});
        out.push_back({type, dim, tokens, true, ScaleLayout::kToken});
      }
    }
  }
  return out;
}

inline std::vector<FloatCase> mx_cases() {
  std::vector<FloatCase> out;
  for (FloatType type : {FloatType::kE4m3, FloatType::kE5m2}) {
    for (int dim : {32, 96, 128, 256}) {
      for (int tokens : {33, 64})
        out.push_back({type, dim, tokens, false, ScaleLayout::kToken, true});
    }
  }
  return out;
}

struct OwnedFloatPage {
  AlignedArray<std::byte> data;
  std::vector<uint16_t> scale;
  std::vector<uint8_t> block_scale;
  FloatPage page;
};

// The bits of a random finite element of `type`.
inline uint32_t random_element(FloatType type, Rng& random) {
  const auto bits = static_cast<uint32_t>(random.next());
  switch (type) {
    case FloatType::kF32:
      return std::bit_cast<uint32_t>(random.normal());
    case FloatType::kF16:
      return f32_to_f16(random.normal() * (bits % 9 == 0 ? 1e-6f : 1.0f));  // some subnormal
    case FloatType::kBf16:
      return f32_to_bf16(random.normal());
    case FloatType::kE4m3:
      return (bits & 0x7f) == 0x7f ? 0 : bits & 0xff;
    case FloatType::kE5m2:
      return (bits & 0x7c) == 0x7c ? 0 : bits & 0xff;
  }
  return 0;
}

// Tokens behind num_tokens are NaN.
inline OwnedFloatPage make_float_page(const FloatCase& c, Side side, Rng& random) {
  OwnedFloatPage out;
  const auto dim = static_cast<size_t>(c.dim);
  const size_t bytes = float_bytes(c.type);
  out.data = AlignedArray<std::byte>(kTokens * dim * bytes);
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t d = 0; d < dim; ++d) {
      const size_t at = side == Side::kKey ? d * kTokens + t : t * dim + d;
      const uint32_t element =
          t < static_cast<size_t>(c.num_tokens) ? random_element(c.type, random) : ~0u;
      std::memcpy(out.data.data() + at * bytes, &element, bytes);
    }
  }
  for (size_t i = 0; c.scaled && i < (c.layout == ScaleLayout::kPage ? 1 : kTokens); ++i) {
    out.scale.push_back(f32_to_f16(0.001f + uniform(random)));
  }
  for (size_t i = 0; c.blocks && i < dim / kMxBlock * kTokens; ++i)
    out.block_scale.push_back(static_cast<uint8_t>(i == 3 ? 0 : 115 + random.below(8)));
  out.page = {.data = out.data.data(),
              .type = c.type,
              .dim = c.dim,
              .num_tokens = c.num_tokens,
              .scale = c.scaled ? out.scale.data() : nullptr,
              .layout = c.layout,
              .block_scale = c.blocks ? out.block_scale.data() : nullptr};
  return out;
}

}  // namespace kvant::test
