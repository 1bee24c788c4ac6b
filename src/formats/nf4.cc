// Family nf4: 16 levels at the quantiles of a normal distribution, one scale per token or group.
//
//   x̂ = scale·level[code]
//
// The levels are NF4's (Dettmers et al., "QLoRA", 2023, appendix E): equal shares of a normal
// distribution on both sides of an exact zero, normalised to ±1. A page is [64][D/2] bytes of
// codes, the low nibble for the even channel, then the scales [groups][64].
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "base/bytes.h"
#include "formats/family.h"
#include "formats/row_codec.h"
#include "formats/stored_scale.h"

namespace kvant {
namespace {

constexpr std::array<float, 16> kLevels = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

// The number of midpoints below x is the nearest level's index.
uint8_t nearest_level(float x) {
  int code = 0;
  for (size_t i = 0; i + 1 < kLevels.size(); ++i) {
    code += x > (kLevels[i] + kLevels[i + 1]) * 0.5f ? 1 : 0;
  }
  return static_cast<uint8_t>(code);
}

class Nf4Codec final : public RowCodec {
 public:
  Nf4Codec(std::string name, int group, const CodecBinding& binding)
      : RowCodec(std::move(name), binding),
        group_(group > 0 ? static_cast<size_t>(group) : dim()),
        num_groups_(dim() / group_),
        code_bytes_(kPageTokens * dim() / 2) {}

  size_t page_bytes() const override {
    return round_up(code_bytes_ + num_groups_ * kPageTokens * sizeof(uint16_t), kAlignment);
  }

  void encode(const PageInput& input, std::byte* page) const override {
    std::memset(page + code_bytes_, 0, page_bytes() - code_bytes_);
    auto* scales = reinterpret_cast<uint16_t*>(page + code_bytes_);
    for (size_t t = 0; t < kPageTokens; ++t) {
      for (size_t g = 0; g < num_groups_; ++g) {
        const size_t start = t * dim() + g * group_;
        const float* run = input.rows + start;
        scales[g * kPageTokens + t] = fitted_scale(run);
        const float inverse = 1.0f / f16_to_f32(scales[g * kPageTokens + t]);
        for (size_t i = 0; i < group_; i += 2) {
          const int low = nearest_level(run[i] * inverse);
          const int high = nearest_level(run[i + 1] * inverse);
          page[(start + i) / 2] = static_cast<std::byte>(low | high << 4);
        }
      }
    }
  }

 protected:
  void decode_row(const std::byte* page, size_t token, float* row) const override {
    const auto* scales = reinterpret_cast<const uint16_t*>(page + code_bytes_);
    const std::byte* codes = page + token * dim() / 2;
    for (size_t g = 0; g < num_groups_; ++g) {
      const float scale = f16_to_f32(scales[g * kPageTokens + token]);
      for (size_t i = g * group_; i < (g + 1) * group_; i += 2) {
        const auto pair = std::to_integer<size_t>(codes[i / 2]);
        row[i] = scale * kLevels[pair & 15];
        row[i + 1] = scale * kLevels[pair >> 4];
      }
    }
  }

 private:
  uint16_t fitted_scale(const float* run) const {
    float most = 0.0f;
    for (size_t i = 0; i < group_; ++i) most = std::max(most, run[i] < 0 ? -run[i] : run[i]);
    return store_scale(saturate(most));
  }

  size_t group_;  // channels that share a scale
  size_t num_groups_;
  size_t code_bytes_;
};

// Signal to noise in dB of rows of 32, 64, 128 and 256 standard normal values
// (tools/make_format_goldens.py).
DistortionBand gauss_band(int row_length) {
  constexpr std::array<double, 4> kDb = {21.18, 20.73, 20.39, 20.12};
  const double at = std::clamp(std::log2(row_length) - 5, 0.0, 3.0);
  const auto low = static_cast<size_t>(std::min(at, 2.0));
  const double db = kDb[low] + (at - static_cast<double>(low)) * (kDb[low + 1] - kDb[low]);
  return {db - 0.3, db + 0.3};
}

FormatDefinition define(int group) {
  FormatDefinition d;
  const bool grouped = group > 0;
  d.info.name = grouped ? "nf4_g" + std::to_string(group) : "nf4_token";
  d.info.summary = "4-bit NF4 levels, one scale per token and " +
                   (grouped ? std::to_string(group) + " channels" : std::string("head"));
  d.info.nominal_bits = 4;
  d.info.granularity = grouped ? Granularity::kGroup : Granularity::kToken;
  d.info.group = group;
  d.info.scale_source = ScaleSource::kDynamic;
  d.make = [name = d.info.name, group](const CodecBinding& binding) -> std::unique_ptr<Codec> {
    return std::make_unique<Nf4Codec>(name, group, binding);
  };
  d.band = [group](Side, int dim) { return gauss_band(group > 0 ? group : dim); };
  d.idempotent = true;
  return d;
}

}  // namespace

std::vector<FormatDefinition> nf4_family() {
  std::vector<FormatDefinition> formats;
  for (const int group : {0, 32, 64, 128}) formats.push_back(define(group));
  return formats;
}

}  // namespace kvant
