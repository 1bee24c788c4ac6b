// Family kvarn: KVarN (arXiv 2606.03458) on pages of 64 tokens, its published group g64.
//
// Rows are rotated by an orthonormal Hadamard matrix, Sylvester's without signs as published. A
// tile [64 tokens][D] then gets a factor per token and one per channel that even out the standard
// deviations along both axes (Sinkhorn scaling). Integers with a scale and zero point per row of
// the tile follow: K per channel over the tokens, V per token over the channels. A row's own factor
// is part of its scale and zero point; the factors along the other axis are stored beside them:
//
//   K: x̂ = (scale[c]·u + zero[c])·factor[t]     V: x̂ = (scale[t]·u + zero[t])·factor[c]
//
// A page is [codes][scales][zeros][factors], all binary16, padded to 64 bytes; codes as of
// uniform_int. As everywhere, codes are those of the stored numbers. What KVarN adds around the
// format, 128 exact tokens at the start, is the cache's (--sinks).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "formats/family.h"
#include "formats/gauss_bands.h"
#include "formats/int_page_codec.h"
#include "formats/rotated.h"
#include "formats/row_fit.h"
#include "formats/stored_scale.h"
#include "simd/clones.h"

namespace kvant {
namespace {

constexpr size_t kT = kPageTokens;
constexpr size_t kLanes = 16;
constexpr int kRounds = 8;
constexpr double kLeastDeviation = 1e-3, kMostDeviation = 1e3;
constexpr double kLeastFactor = 0.7408182206817179;  // e^-0.3
constexpr double kMostFactor = 22026.465794806718;   // e^10

// The standard deviation (N − 1) of each row; sums run in 16 lanes, then pairwise.
KVANT_CLONES void token_deviations(const float* x, size_t dim, double* out) {
  const auto sum_of = [dim](const float* row, double mean, bool squared) {
    std::array<double, kLanes> sum{};
    for (size_t i = 0; i < dim; i += kLanes) {
      for (size_t l = 0; l < kLanes; ++l) {
        const double d = static_cast<double>(row[i + l]) - mean;
        sum[l] += squared ? d * d : d;
      }
    }
    for (size_t width = kLanes / 2; width > 0; width /= 2) {
      for (size_t l = 0; l < width; ++l) sum[l] += sum[l + width];
    }
    return sum[0];
  };
  const auto n = static_cast<double>(dim);
  for (size_t t = 0; t < kT; ++t) {
    const double mean = sum_of(x + t * dim, 0, false) / n;
    out[t] = std::sqrt(sum_of(x + t * dim, mean, true) / (n - 1));
  }
}

// The same of each channel, over the 64 tokens in order.
KVANT_CLONES void channel_deviations(const float* x, size_t dim, double* mean, double* out) {
  for (size_t i = 0; i < dim; ++i) mean[i] = out[i] = 0;
  for (size_t t = 0; t < kT; ++t) {
    for (size_t i = 0; i < dim; ++i) mean[i] += static_cast<double>(x[t * dim + i]);
  }
  for (size_t i = 0; i < dim; ++i) mean[i] /= kT;
  for (size_t t = 0; t < kT; ++t) {
    for (size_t i = 0; i < dim; ++i) {
      const double d = static_cast<double>(x[t * dim + i]) - mean[i];
      out[i] += d * d;
    }
  }
  for (size_t i = 0; i < dim; ++i) out[i] = std::sqrt(out[i] / (kT - 1));
}

// Factors along both axes of a tile, and what they leave of it.
class Sinkhorn {
 public:
  Sinkhorn(const float* rows, size_t dim)
      : rows_(rows),
        dim_(dim),
        token_(kT, 1.0),
        channel_(dim, 1.0),
        token_deviation_(kT),
        channel_deviation_(dim),
        means_(dim),
        even_(kT * dim) {}

  // The factors of the axis that isn't the rows', after the round that evened out both best.
  std::vector<double> across(Side side) {
    const bool key = side == Side::kKey;
    std::vector<double>& across = key ? token_ : channel_;
    std::vector<double> best = across;
    double least = std::numeric_limits<double>::infinity();
    for (int round = 0; round < kRounds; ++round) {
      measure();
      const double imbalance = spread(token_deviation_) + spread(channel_deviation_);
      if (imbalance <= least) {
        least = imbalance;
        best = across;
      }
      scale(across, key ? token_deviation_ : channel_deviation_);
      measure();
      scale(key ? channel_ : token_, key ? channel_deviation_ : token_deviation_);
    }
    return best;
  }

 private:
  // Deviations of the tile divided by both factors. One that vanishes counts as the least.
  void measure() {
    std::vector<float> inverse(dim_);
    for (size_t i = 0; i < dim_; ++i) inverse[i] = static_cast<float>(1 / channel_[i]);
    for (size_t t = 0; t < kT; ++t) {
      const auto token = static_cast<float>(1 / token_[t]);
      const float* row = rows_ + t * dim_;
      float* out = even_.data() + t * dim_;
      for (size_t i = 0; i < dim_; ++i) out[i] = row[i] * token * inverse[i];
    }
    token_deviations(even_.data(), dim_, token_deviation_.data());
    channel_deviations(even_.data(), dim_, means_.data(), channel_deviation_.data());
    for (std::vector<double>* deviations : {&token_deviation_, &channel_deviation_}) {
      for (double& d : *deviations) d = std::clamp(d, kLeastDeviation, kMostDeviation);
    }
  }

  static double spread(const std::vector<double>& deviations) {
    const auto [least, most] = std::minmax_element(deviations.begin(), deviations.end());
    return *most / *least;
  }

  static void scale(std::vector<double>& factors, const std::vector<double>& deviations) {
    for (size_t i = 0; i < factors.size(); ++i)
      factors[i] = std::clamp(factors[i] * deviations[i], kLeastFactor, kMostFactor);
  }

  const float* rows_;
  size_t dim_;
  std::vector<double> token_, channel_;  // factors
  std::vector<double> token_deviation_, channel_deviation_, means_;
  AlignedArray<float> even_;
};

class KvarnCodec final : public IntPageCodec {
 public:
  KvarnCodec(std::string name, int bits, const CodecBinding& binding)
      : IntPageCodec(std::move(name), binding, bits,
                     binding.side == Side::kKey ? ScaleLayout::kChannel : ScaleLayout::kToken, 1),
        num_rows_(side_ == Side::kKey ? dim_ : kT),
        num_across_(side_ == Side::kKey ? kT : dim_) {}

  size_t page_bytes() const override {
    return round_up(code_bytes_ + 2 * (2 * num_rows_ + num_across_), kAlignment);
  }

  void encode(const PageInput& input, std::byte* page) const override {
    std::memset(page + code_bytes_, 0, page_bytes() - code_bytes_);
    auto* scales = reinterpret_cast<uint16_t*>(page + code_bytes_);
    uint16_t* zeros = scales + num_rows_;
    uint16_t* across = zeros + num_rows_;
    AlignedArray<float> tile(kT * dim_);
    for (size_t i = 0; i < kT * dim_; ++i) tile[i] = saturate(input.rows[i]);
    const std::vector<double> factors = Sinkhorn(tile.data(), dim_).across(side_);
    std::vector<float> inverse(num_across_);
    for (size_t i = 0; i < num_across_; ++i) {
      across[i] = f32_to_f16_saturated(static_cast<float>(factors[i]));
      inverse[i] = 1.0f / f16_to_f32(across[i]);
    }
    const bool key = side_ == Side::kKey;
    for (size_t t = 0; t < kT; ++t) {
      for (size_t i = 0; i < dim_; ++i)
        tile[t * dim_ + i] = saturate(tile[t * dim_ + i] * inverse[key ? t : i]);
    }
    AlignedArray<uint8_t> codes(kT * dim_);
    for (size_t r = 0; r < num_rows_; ++r) {
      const Grid grid = encode_row(tile.data(), r, codes.data());
      scales[r] = grid.scale;
      zeros[r] = grid.zero;
    }
    pack(codes.data(), page);
  }

  void decode(const std::byte* page, float* rows) const override {
    const bool key = side_ == Side::kKey;
    AlignedArray<uint8_t> codes(kT * dim_);
    unpack(page, codes.data());
    const IntPage view = view_of(page);
    for (size_t t = 0; t < kT; ++t) {
      for (size_t i = 0; i < dim_; ++i) {
        const size_t row = key ? i : t;
        const float x = f16_to_f32(view.scale[row]) * static_cast<float>(codes[t * dim_ + i]) +
                        f16_to_f32(view.zero[row]);
        rows[t * dim_ + i] = x * f16_to_f32(view.across[key ? t : i]);
      }
    }
  }

 private:
  IntPage view_of(const std::byte* page) const override {
    const auto* stored = reinterpret_cast<const uint16_t*>(page + code_bytes_);
    return {.codes = reinterpret_cast<const uint8_t*>(page),
            .scale = stored,
            .zero = stored + num_rows_,
            .factor = nullptr,
            .bits = bits_,
            .offset = 0,
            .dim = static_cast<int>(dim_),
            .num_groups = 1,
            .layout = layout_,
            .across = stored + 2 * num_rows_};
  }

  // The min/max grid of row r of the tile, a channel of K or a token of V, and its codes.
  Grid encode_row(const float* tile, size_t r, uint8_t* codes) const {
    const bool key = side_ == Side::kKey;
    const size_t first = key ? r : r * dim_, step = key ? dim_ : 1;
    float low = tile[first], high = low;
    for (size_t i = 0; i < num_across_; ++i) {
      low = std::min(low, tile[first + i * step]);
      high = std::max(high, tile[first + i * step]);
    }
    const int levels = (1 << bits_) - 1;
    const Grid grid = min_max_grid(low, high, levels);
    const float inverse = 1.0f / f16_to_f32(grid.scale), zero = f16_to_f32(grid.zero);
    for (size_t i = 0; i < num_across_; ++i) {
      const float code =
          std::clamp((tile[first + i * step] - zero) * inverse, 0.0f, static_cast<float>(levels));
      codes[first + i * step] = static_cast<uint8_t>(round_even(code));
    }
    return grid;
  }

  size_t num_rows_;    // that have a grid: channels of K, tokens of V
  size_t num_across_;  // factors along the other axis
};

FormatDefinition define(int bits) {
  FormatDefinition d;
  d.info.name = "kvarn" + std::to_string(bits);
  d.info.summary = "KVarN: " + std::to_string(bits) +
                   "-bit integers after Hadamard and Sinkhorn scaling of the page, K per channel, "
                   "V per token";
  d.info.nominal_bits = bits;
  d.info.granularity = Granularity::kChannel;
  d.info.zero_point = true;
  d.info.token_norm = true;
  d.info.rotated = true;
  d.info.scale_source = ScaleSource::kDynamic;
  d.make = [bits, name = d.info.name](const CodecBinding& binding) -> std::unique_ptr<Codec> {
    return rotated_codec(std::make_unique<KvarnCodec>(name, bits, binding), binding,
                         RotationSigns::kNone);
  };
  // Even Gaussian rows stay what they are: a grid over a row of 64 tokens, or of a token's
  // channels.
  d.band = [bits](Side side, int dim) {
    const double db = gauss_db(bits, GridKind::kZeroPoint, side == Side::kKey ? kPageTokens : dim);
    return DistortionBand{db - 0.35, db + 0.35};
  };
  return d;
}

}  // namespace

std::vector<FormatDefinition> kvarn_family() {
  std::vector<FormatDefinition> formats;
  for (const int bits : {4, 3, 2}) formats.push_back(define(bits));
  return formats;
}

}  // namespace kvant
