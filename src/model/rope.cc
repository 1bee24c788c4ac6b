// Sources of the formulas: linear (Chen et al., 2023, arXiv:2306.15595), YaRN (Peng et al., 2023,
// arXiv:2309.00071), LongRoPE (Ding et al., 2024, arXiv:2402.13753), llama3 (the Llama 3.1
// reference). Frequencies are computed in float32 steps as Transformers does, so that both give the
// same angles far from the origin.
#include "model/rope.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace kvant {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

void scale_linear(const RopeScaling& s, double, Rope& rope) {
  for (float& f : rope.inv_freq) f /= static_cast<float>(s.factor);
}

// Long wavelengths are stretched, short ones kept, those between blended.
void scale_llama3(const RopeScaling& s, double, Rope& rope) {
  const auto original = static_cast<double>(s.original_positions);
  const double long_wave = original / s.low_freq_factor;
  const double short_wave = original / s.high_freq_factor;
  for (float& f : rope.inv_freq) {
    const double wave = kTwoPi / f;
    if (wave < short_wave) continue;
    const double stretched = f / s.factor;
    if (wave > long_wave) {
      f = static_cast<float>(stretched);
      continue;
    }
    const double blend =
        (original / wave - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
    f = static_cast<float>((1 - blend) * stretched + blend * f);
  }
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

void scale_yarn(const RopeScaling& s, double base, Rope& rope) {
  const double dims = 2.0 * rope.num_pairs();
  // The pair whose wavelength fits `rotations` times into the original context.
  const auto pair_of = [&](double rotations) {
    return dims * std::log(static_cast<double>(s.original_positions) / (rotations * kTwoPi)) /
           (2 * std::log(base));
  };
  double low = pair_of(s.beta_fast);
  double high = pair_of(s.beta_slow);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1);
  if (low == high) high += 0.001;
  for (int j = 0; j < rope.num_pairs(); ++j) {
    const double ramp = std::clamp((j - low) / (high - low), 0.0, 1.0);
    float& f = rope.inv_freq[static_cast<size_t>(j)];
    f = static_cast<float>(f / s.factor * ramp + f * (1 - ramp));
  }
  const double given =
      s.mscale != 0 && s.mscale_all_dim != 0
          ? yarn_mscale(s.factor, s.mscale) / yarn_mscale(s.factor, s.mscale_all_dim)
          : yarn_mscale(s.factor, 1);
  rope.attention_factor = static_cast<float>(s.attention_factor != 0 ? s.attention_factor : given);
}

void scale_longrope(const RopeScaling& s, double, Rope& rope) {
  for (size_t j = 0; j < rope.inv_freq.size(); ++j) {
    rope.inv_freq[j] /= static_cast<float>(s.pair_factors[j]);
  }
  const double derived =
      s.factor <= 1
          ? 1.0
          : std::sqrt(1 + std::log(s.factor) / std::log(static_cast<double>(s.original_positions)));
  rope.attention_factor =
      static_cast<float>(s.attention_factor != 0 ? s.attention_factor : derived);
}

void keep(const RopeScaling&, double, Rope&) {}

struct ScalingRow {
  std::string_view kind;
  bool needs_original;
  void (*apply)(const RopeScaling&, double base, Rope&);
};
// `dynamic` (NTK by length) changes nothing up to the positions that a model was made for, and
// nothing beyond is served.
constexpr std::array<ScalingRow, 7> kScalings = {{{"default", false, keep},
                                                  {"dynamic", false, keep},
                                                  {"linear", false, scale_linear},
                                                  {"llama3", true, scale_llama3},
                                                  {"yarn", true, scale_yarn},
                                                  {"longrope", true, scale_longrope},
                                                  {"su", true, scale_longrope}}};

const ScalingRow* find_scaling(std::string_view kind) {
  const auto row = std::find_if(kScalings.begin(), kScalings.end(),
                                [&](const ScalingRow& r) { return r.kind == kind; });
  return row == kScalings.end() ? nullptr : &*row;
}

}  // namespace

std::string known_rope_scalings() {
  std::string out;
  for (const ScalingRow& row : kScalings) out += (out.empty() ? "" : ", ") + std::string(row.kind);
  return out;
}

bool rope_scaling_stretches(std::string_view kind) {
  const ScalingRow* row = find_scaling(kind);
  return row != nullptr && row->apply != keep;
}

Result<Rope> make_rope(int dims, double base, const RopeScaling& scaling) {
  if (dims < 2 || dims % 2 != 0) {
    return corrupt("rope over " + std::to_string(dims) +
                   " channels, wanted a positive even number");
  }
  if (!(base > 1) || !std::isfinite(base) || !(scaling.factor > 0)) {
    return corrupt("rope base " + std::to_string(base) + " with factor " +
                   std::to_string(scaling.factor) +
                   ", wanted a base above 1 and a positive factor");
  }
  const ScalingRow* row = find_scaling(scaling.kind);
  if (row == nullptr) {
    return unsupported("rope scaling '" + scaling.kind + "' isn't one of " + known_rope_scalings());
  }
  if (row->needs_original && scaling.original_positions < 2) {
    return corrupt("rope scaling '" + scaling.kind + "' lacks original_max_position_embeddings");
  }
  if (row->apply == scale_longrope &&
      scaling.pair_factors.size() != static_cast<size_t>(dims / 2)) {
    return corrupt("rope scaling '" + scaling.kind + "' has " +
                   std::to_string(scaling.pair_factors.size()) + " factors, wanted " +
                   std::to_string(dims / 2));
  }
  Rope rope;
  for (int j = 0; j < dims / 2; ++j) {
    const auto exponent = static_cast<float>(2 * j) / static_cast<float>(dims);
    rope.inv_freq.push_back(1.0f / static_cast<float>(std::pow(base, exponent)));
  }
  row->apply(scaling, base, rope);
  return rope;
}

void fill_rope_row(const Rope& rope, int64_t position, float* row) {
  const int n = rope.num_pairs();
  for (int j = 0; j < n; ++j) {
    const float angle = static_cast<float>(position) * rope.inv_freq[static_cast<size_t>(j)];
    row[j] = std::cos(angle) * rope.attention_factor;
    row[n + j] = std::sin(angle) * rope.attention_factor;
  }
}

void to_halves(const Rope& rope, float* head, float* scratch) {
  if (rope.pairing == RopePairing::kHalves) return;
  const int n = rope.num_pairs();
  std::copy(head, head + 2 * n, scratch);
  for (int j = 0; j < n; ++j) {
    head[j] = scratch[2 * j];
    head[n + j] = scratch[2 * j + 1];
  }
}

void rotate(const Rope& rope, const float* row, float* head) {
  const int n = rope.num_pairs();
  for (int j = 0; j < n; ++j) {
    const float a = head[j];
    const float b = head[n + j];
    head[j] = a * row[j] - b * row[n + j];
    head[n + j] = b * row[j] + a * row[n + j];
  }
}

}  // namespace kvant
