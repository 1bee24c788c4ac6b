// Family uniform_int: integers of 1 to 8 bits on a uniform grid, symmetric or with a zero point.
//
//   x̂ = scale·(u − offset) + zero, scale and zero in binary16
//   symmetric:       scale = max|x| / (2^(b−1) − 1), offset = 2^(b−1), no zero
//   with zero point: scale = (max − min) / (2^b − 1), zero = min, offset = 0; or searched
//   (row_fit.h)
//
// `norm` (scales per channel only): the rows are divided by a factor per token first, and x̂ is
// multiplied by it (token_norm.h).
//
// A page is [codes][scales][zeros][factors], padded to 64 bytes; codes are laid out for the kernel
// (page_kernels.h). One scale is shared by a page (head), a token, a group of a token's channels,
// or a channel's 64 tokens; `tensor` stores none and uses the given one, and a symmetric `head`
// stores the given one where there is one. The arithmetic on pages is
// the kernels'; this file is what bytes mean.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "base/bytes.h"
#include "formats/family.h"
#include "formats/gauss_bands.h"
#include "formats/int_page_codec.h"
#include "formats/row_fit.h"
#include "formats/stored_scale.h"
#include "formats/token_norm.h"

namespace kvant {
namespace {

constexpr size_t kT = kPageTokens;

struct UniformSpec {
  int bits = 8;
  Granularity granularity = Granularity::kToken;
  int group = 0;
  bool zero_point = false;
  bool token_norm = false;
  GridSearch search = GridSearch::kMinMax;

  int levels() const { return zero_point ? (1 << bits) - 1 : (1 << (bits - 1)) - 1; }
  int offset() const { return zero_point ? 0 : 1 << (bits - 1); }
};

ScaleLayout layout_of(Granularity granularity) {
  switch (granularity) {
    case Granularity::kToken:
    case Granularity::kGroup:
      return ScaleLayout::kToken;
    case Granularity::kChannel:
      return ScaleLayout::kChannel;
    default:
      return ScaleLayout::kPage;
  }
}

// One code per value of a run that shares a grid. `least` and `most` bound the signed code.
struct CodeRange {
  float least, most;
  int offset;
};

uint8_t to_code(float x, float zero, float inverse, const CodeRange& range) {
  float code = (x - zero) * inverse;
  code = code < range.least ? range.least : code;
  code = code > range.most ? range.most : code;
  return static_cast<uint8_t>(static_cast<int>(round_even(code)) + range.offset);
}

class UniformIntCodec final : public IntPageCodec {
 public:
  UniformIntCodec(std::string name, const UniformSpec& spec, const CodecBinding& binding)
      : IntPageCodec(std::move(name), binding, spec.bits, layout_of(spec.granularity),
                     layout_of(spec.granularity) == ScaleLayout::kToken
                         ? static_cast<size_t>(binding.dim) / group_of(spec, binding.dim)
                         : 1),
        spec_(spec),
        group_(group_of(spec, binding.dim)) {
    switch (layout_) {
      case ScaleLayout::kPage:
        num_grids_ = 1;
        break;
      case ScaleLayout::kToken:
        num_grids_ = num_groups_ * kT;
        break;
      case ScaleLayout::kChannel:
        num_grids_ = dim_;
        break;
    }
    if (spec.granularity == Granularity::kTensor) {
      given_scale_ = f32_to_f16(binding.artifacts->tensor_scale);
    } else {
      if (spec.granularity == Granularity::kHead && binding.artifacts != nullptr)
        given_scale_ = f32_to_f16(binding.artifacts->head_scale);
      meta_bytes_ = num_grids_ * (spec.zero_point ? 4 : 2);
      factors_at_ = code_bytes_ + meta_bytes_;
      if (spec.token_norm) meta_bytes_ += kT;
    }
  }

  size_t page_bytes() const override { return round_up(code_bytes_ + meta_bytes_, kAlignment); }

  void encode(const PageInput& input, std::byte* page) const override {
    std::memset(page + code_bytes_, 0, page_bytes() - code_bytes_);
    AlignedArray<uint8_t> codes(kT * dim_);
    auto* scales = reinterpret_cast<uint16_t*>(page + code_bytes_);
    uint16_t* zeros = spec_.zero_point ? scales + num_grids_ : nullptr;
    switch (layout_) {
      case ScaleLayout::kPage:
        encode_whole(input.rows, scales, zeros, codes.data());
        break;
      case ScaleLayout::kToken:
        encode_tokens(input.rows, scales, zeros, codes.data());
        break;
      case ScaleLayout::kChannel:
        if (spec_.token_norm) {
          encode_normed(input.rows, scales, zeros, reinterpret_cast<uint8_t*>(page + factors_at_),
                        codes.data());
        } else {
          encode_channels(input.rows, scales, zeros, codes.data());
        }
        break;
    }
    pack(codes.data(), page);
  }

  void decode(const std::byte* page, float* rows) const override {
    AlignedArray<uint8_t> codes(kT * dim_);
    unpack(page, codes.data());
    const IntPage view = view_of(page);
    if (layout_ == ScaleLayout::kChannel) {
      decode_channels(view, codes.data(), rows);
      return;
    }
    for (size_t t = 0; t < kT; ++t) {
      for (size_t g = 0; g < num_groups_; ++g) {
        const size_t start = t * dim_ + g * group_;
        const size_t grid = layout_ == ScaleLayout::kToken ? g * kT + t : 0;
        decode_run(codes.data() + start, group_, grid_of(view, grid), rows + start);
      }
    }
  }

 private:
  static size_t group_of(const UniformSpec& spec, int dim) {
    const bool grouped = spec.granularity == Granularity::kGroup;
    return static_cast<size_t>(grouped ? spec.group : dim);
  }

  IntPage view_of(const std::byte* page) const override {
    const auto* stored = reinterpret_cast<const uint16_t*>(page + code_bytes_);
    const bool given = spec_.granularity == Granularity::kTensor;
    return {
        .codes = reinterpret_cast<const uint8_t*>(page),
        .scale = given ? &given_scale_ : stored,
        .zero = spec_.zero_point ? stored + num_grids_ : nullptr,
        .factor = spec_.token_norm ? reinterpret_cast<const uint8_t*>(page + factors_at_) : nullptr,
        .bits = spec_.bits,
        .offset = spec_.offset(),
        .dim = static_cast<int>(dim_),
        .num_groups = static_cast<int>(num_groups_),
        .layout = layout_};
  }

  static Grid grid_of(const IntPage& view, size_t index) {
    return {view.scale[index], view.zero ? view.zero[index] : uint16_t{0}};
  }

  void decode_run(const uint8_t* codes, size_t n, Grid grid, float* out) const {
    const float scale = f16_to_f32(grid.scale);
    const float zero = f16_to_f32(grid.zero);
    const int offset = spec_.offset();
    for (size_t i = 0; i < n; ++i) {
      out[i] = scale * static_cast<float>(int{codes[i]} - offset) + zero;
    }
  }

  void decode_channels(const IntPage& view, const uint8_t* codes, float* rows) const {
    AlignedArray<float> scale(dim_);
    AlignedArray<float> zero(dim_);
    for (size_t i = 0; i < dim_; ++i) {
      scale[i] = f16_to_f32(view.scale[i]);
      zero[i] = view.zero ? f16_to_f32(view.zero[i]) : 0.0f;
    }
    const int offset = spec_.offset();
    for (size_t t = 0; t < kT; ++t) {
      const float factor = view.factor ? factor_value(view.factor[t]) : 1.0f;
      for (size_t i = 0; i < dim_; ++i) {
        const float code = static_cast<float>(int{codes[t * dim_ + i]} - offset);
        rows[t * dim_ + i] = factor * (scale[i] * code + zero[i]);
      }
    }
  }

  CodeRange code_range() const {
    const auto levels = static_cast<float>(spec_.levels());
    return {spec_.zero_point ? 0.0f : -levels, levels, spec_.offset()};
  }

  // The grid of values that span [low, high].
  Grid plain_grid(float low, float high) const {
    low = saturate(low);
    high = saturate(high);
    if (spec_.zero_point) return min_max_grid(low, high, spec_.levels());
    const float most = -low > high ? -low : high;
    return {store_scale(most / static_cast<float>(spec_.levels())), 0};
  }

  Grid searched_grid(const float* row, size_t n) const {
    const auto search = spec_.search == GridSearch::kHqq ? hqq_grid : least_squares_grid;
    return search(row, static_cast<int>(n), spec_.levels());
  }

  // The grid of one run of n neighbouring values, n a multiple of 16.
  Grid run_grid(const float* run, size_t n) const {
    if (spec_.search != GridSearch::kMinMax) {
      std::array<float, 1024> row;
      for (size_t i = 0; i < n; ++i) row[i] = saturate(run[i]);
      return searched_grid(row.data(), n);
    }
    constexpr size_t kLanes = 16;
    float low[kLanes];
    float high[kLanes];
    for (size_t l = 0; l < kLanes; ++l) low[l] = high[l] = run[l];
    for (size_t i = kLanes; i < n; i += kLanes) {
      for (size_t l = 0; l < kLanes; ++l) {
        low[l] = run[i + l] < low[l] ? run[i + l] : low[l];
        high[l] = run[i + l] > high[l] ? run[i + l] : high[l];
      }
    }
    return plain_grid(*std::min_element(low, low + kLanes), *std::max_element(high, high + kLanes));
  }

  void code_run(const float* run, size_t n, Grid grid, uint8_t* codes) const {
    const float inverse = 1.0f / f16_to_f32(grid.scale);
    const float zero = f16_to_f32(grid.zero);
    const CodeRange range = code_range();
    for (size_t i = 0; i < n; ++i) codes[i] = to_code(run[i], zero, inverse, range);
  }

  void encode_whole(const float* rows, uint16_t* scales, uint16_t* zeros, uint8_t* codes) const {
    const Grid grid = given_scale_ != 0 ? Grid{given_scale_, 0} : run_grid(rows, kT * dim_);
    if (spec_.granularity == Granularity::kHead) scales[0] = grid.scale;
    if (zeros) zeros[0] = grid.zero;
    code_run(rows, kT * dim_, grid, codes);
  }

  void encode_tokens(const float* rows, uint16_t* scales, uint16_t* zeros, uint8_t* codes) const {
    for (size_t t = 0; t < kT; ++t) {
      for (size_t g = 0; g < num_groups_; ++g) {
        const size_t start = t * dim_ + g * group_;
        const Grid grid = run_grid(rows + start, group_);
        scales[g * kT + t] = grid.scale;
        if (zeros) zeros[g * kT + t] = grid.zero;
        code_run(rows + start, group_, grid, codes + start);
      }
    }
  }

  void channel_grids(const float* rows, Grid* grids) const {
    if (spec_.search != GridSearch::kMinMax) {
      for (size_t i = 0; i < dim_; ++i) {
        std::array<float, kT> column;
        for (size_t t = 0; t < kT; ++t) column[t] = saturate(rows[t * dim_ + i]);
        grids[i] = searched_grid(column.data(), kT);
      }
      return;
    }
    AlignedArray<float> low(dim_);
    AlignedArray<float> high(dim_);
    std::copy_n(rows, dim_, low.data());
    std::copy_n(rows, dim_, high.data());
    for (size_t t = 1; t < kT; ++t) {
      const float* row = rows + t * dim_;
      for (size_t i = 0; i < dim_; ++i) {
        low[i] = row[i] < low[i] ? row[i] : low[i];
        high[i] = row[i] > high[i] ? row[i] : high[i];
      }
    }
    for (size_t i = 0; i < dim_; ++i) grids[i] = plain_grid(low[i], high[i]);
  }

  void encode_channels(const float* rows, uint16_t* scales, uint16_t* zeros, uint8_t* codes) const {
    AlignedArray<Grid> grids(dim_);
    channel_grids(rows, grids.data());
    AlignedArray<float> inverse(dim_);
    AlignedArray<float> zero(dim_);
    for (size_t i = 0; i < dim_; ++i) {
      scales[i] = grids[i].scale;
      if (zeros) zeros[i] = grids[i].zero;
      inverse[i] = 1.0f / f16_to_f32(grids[i].scale);
      zero[i] = f16_to_f32(grids[i].zero);
    }
    const CodeRange range = code_range();
    for (size_t t = 0; t < kT; ++t) {
      const float* row = rows + t * dim_;
      uint8_t* out = codes + t * dim_;
      const float* z = zero.data();
      const float* inv = inverse.data();
      for (size_t i = 0; i < dim_; ++i) out[i] = to_code(row[i], z[i], inv[i], range);
    }
  }

  void encode_normed(const float* rows, uint16_t* scales, uint16_t* zeros, uint8_t* factors,
                     uint8_t* codes) const {
    AlignedArray<float> even(kT * dim_);
    for (size_t i = 0; i < kT * dim_; ++i) even[i] = saturate(rows[i]);
    token_factors(even.data(), dim_, factors);
    for (size_t t = 0; t < kT; ++t) {
      const float inverse = 1.0f / factor_value(factors[t]);
      for (size_t i = 0; i < dim_; ++i) even[t * dim_ + i] *= inverse;
    }
    encode_channels(even.data(), scales, zeros, codes);
  }

  UniformSpec spec_;
  size_t group_ = 0;      // channels of a group; dim_ where a format has none
  size_t num_grids_ = 0;  // scales of a page
  size_t meta_bytes_ = 0;
  size_t factors_at_ = 0;     // where the factors begin, of `norm`
  uint16_t given_scale_ = 0;  // 0: none
};

std::string spec_name(const UniformSpec& spec, bool with_search) {
  std::string name = "int" + std::to_string(spec.bits) + "_";
  name += spec.granularity == Granularity::kGroup ? "g" + std::to_string(spec.group)
                                                  : std::string(granularity_name(spec.granularity));
  if (spec.zero_point) name += "_z";
  if (spec.token_norm) name += "_norm";
  if (with_search && spec.search == GridSearch::kLeastSquares) name += "_lsq";
  if (with_search && spec.search == GridSearch::kHqq) name += "_hqq";
  return name;
}

std::string spec_summary(const UniformSpec& spec) {
  std::string text = std::to_string(spec.bits) + "-bit integers, ";
  text += spec.zero_point ? "scale and zero point" : "one scale";
  switch (spec.granularity) {
    case Granularity::kTensor:
      text += " given for all pages";
      break;
    case Granularity::kHead:
      text += " per page and head";
      break;
    case Granularity::kToken:
      text += " per token and head";
      break;
    case Granularity::kGroup:
      text += " per token and " + std::to_string(spec.group) + " channels";
      break;
    default:
      text += " per channel over the page";
      if (spec.token_norm) text += ", a factor per token";
      break;
  }
  if (spec.search == GridSearch::kLeastSquares) text += ", fitted by least squares";
  if (spec.search == GridSearch::kHqq) text += ", zero point by HQQ's solver";
  return text;
}

DistortionBand gauss_band(const UniformSpec& spec, int dim) {
  if (spec.granularity == Granularity::kTensor) return {30, 50};  // whatever scale was given
  int row = dim;
  if (spec.granularity == Granularity::kGroup) row = spec.group;
  if (spec.granularity == Granularity::kChannel) row = kPageTokens;
  if (spec.granularity == Granularity::kHead) row = kPageTokens * dim;
  GridKind kind = spec.zero_point ? GridKind::kZeroPoint : GridKind::kSymmetric;
  if (spec.search == GridSearch::kLeastSquares) kind = GridKind::kLeastSquares;
  const double db = gauss_db(spec.bits, kind, row);
  const double slack = spec.granularity == Granularity::kHead ? 1.3 : 0.35;
  if (spec.search != GridSearch::kHqq) return {db - slack, db + slack};
  // HQQ lies between min/max and the best line.
  return {db - slack, gauss_db(spec.bits, GridKind::kLeastSquares, row) + slack};
}

FormatDefinition define(const UniformSpec& spec) {
  FormatDefinition d;
  d.info.name = spec_name(spec, true);
  d.info.layout = spec_name(spec, false);
  d.info.summary = spec_summary(spec);
  d.info.nominal_bits = spec.bits;
  d.info.granularity = spec.granularity;
  d.info.group = spec.group;
  d.info.zero_point = spec.zero_point;
  d.info.token_norm = spec.token_norm;
  d.info.scale_source =
      spec.granularity == Granularity::kTensor ? ScaleSource::kGiven : ScaleSource::kDynamic;
  d.check = [spec](const FormatInfo& info, const CodecBinding& binding) -> Status {
    if (int_dim_fits(spec.bits, spec.offset(), binding.dim)) return {};
    return unsupported(info.name + " can't score rows of " + std::to_string(binding.dim) +
                       " channels: exact integer sums of " + std::to_string(spec.bits) +
                       "-bit codes would leave 32 bits");
  };
  d.make = [spec, name = d.info.layout](const CodecBinding& binding) -> std::unique_ptr<Codec> {
    return std::make_unique<UniformIntCodec>(name, spec, binding);
  };
  d.band = [spec](Side, int dim) { return gauss_band(spec, dim); };
  d.idempotent = spec.search == GridSearch::kMinMax && !spec.token_norm;
  return d;
}

}  // namespace

std::vector<FormatDefinition> uniform_int_family() {
  std::vector<FormatDefinition> formats;
  formats.push_back(define({.bits = 8, .granularity = Granularity::kTensor}));
  formats.push_back(define({.bits = 8, .granularity = Granularity::kHead}));
  formats.push_back(define({.bits = 8, .granularity = Granularity::kHead, .zero_point = true}));
  for (const int bits : {8, 6, 5, 4, 3, 2}) {
    for (const auto& [granularity, group] : {std::pair{Granularity::kToken, 0},
                                             {Granularity::kGroup, 32},
                                             {Granularity::kGroup, 64},
                                             {Granularity::kGroup, 128},
                                             {Granularity::kChannel, 0}}) {
      UniformSpec spec = {.bits = bits, .granularity = granularity, .group = group};
      formats.push_back(define(spec));
      spec.zero_point = true;
      formats.push_back(define(spec));
      if (granularity == Granularity::kChannel) {
        UniformSpec normed = spec;
        normed.token_norm = true;
        formats.push_back(define(normed));
      }
      if (bits > 4) continue;  // a search gains nothing where the grid is fine
      spec.search = GridSearch::kLeastSquares;
      formats.push_back(define(spec));
      if (granularity == Granularity::kChannel) continue;
      spec.search = GridSearch::kHqq;
      formats.push_back(define(spec));
    }
  }
  // One bit is of use where few channels of a page are worth no more (transform.cc).
  for (const GridSearch search : {GridSearch::kMinMax, GridSearch::kLeastSquares}) {
    formats.push_back(define(
        {.bits = 1, .granularity = Granularity::kChannel, .zero_point = true, .search = search}));
  }
  return formats;
}

}  // namespace kvant
