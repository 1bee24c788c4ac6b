// Pages of seeded rows, and a loop over every format, side and width that can be bound.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/rng.h"
#include "formats/family.h"
#include "formats/tested_formats.h"

namespace kvant {

// Slow builds take the first two: a width that leaves every wide vector a rest, and one that leaves
// none and that every group divides.
inline constexpr int kAllDims[] = {80, 128, 64, 96, 160, 192, 256};
inline constexpr std::span<const int> kTestDims(kAllDims, kSlowBuild ? 2 : std::size(kAllDims));
inline constexpr Side kSides[] = {Side::kKey, Side::kValue};
inline constexpr uint64_t kTestSeed = 20260101;

using Rows = std::vector<float>;

// Standard normal rows. The loops ask for the same ones thousands of times, so they are kept.
inline const Rows& gaussian_rows(int dim, uint64_t seed) {
  static std::map<std::pair<int, uint64_t>, Rows> known;
  Rows& rows = known[{dim, seed}];
  if (rows.empty()) {
    Rng rng(seed);
    rows.resize(static_cast<size_t>(kPageTokens * dim));
    for (float& x : rows) x = rng.normal();
  }
  return rows;
}

inline Rows constant_rows(int dim, float value) {
  return Rows(static_cast<size_t>(kPageTokens * dim), value);
}

// A codec with what a test needs around it.
struct Bound {
  const FormatDefinition* definition;
  Side side;
  int dim;
  std::unique_ptr<Codec> codec;

  // Reads pages like another format of the loop: nothing new to learn from its read path.
  bool shares_layout() const { return definition->info.layout != definition->info.name; }
  std::string label() const {
    return definition->info.name + " " + std::string(side_name(side)) + " of " +
           std::to_string(dim) + " channels";
  }
  AlignedArray<std::byte> encode(const Rows& rows, int poison = 0xa5) const {
    AlignedArray<std::byte> page(codec->page_bytes());
    std::memset(page.data(), poison, page.size());
    PageInput input;
    input.rows = rows.data();
    codec->encode(input, page.data());
    return page;
  }
  Rows decode(const AlignedArray<std::byte>& page) const {
    Rows rows(static_cast<size_t>(kPageTokens * dim), NAN);
    codec->decode(page.data(), rows.data());
    return rows;
  }
  Rows round_trip(const Rows& rows) const { return decode(encode(rows)); }
};

// Queries and probabilities are coarser beside codes of up to 4 bits (docs/numerics.md).
inline bool has_small_codes(const Bound& bound) { return bound.definition->info.nominal_bits <= 4; }

// What calibration would give: scales in which standard normal values fit, with room, and artifacts
// that mean nothing.
inline CodecArtifacts test_artifacts(const FormatInfo& info, int dim) {
  static std::map<std::pair<std::string, int>, std::vector<float>> tensors;
  CodecArtifacts artifacts = {.tensor_scale = info.family == "floats" ? 0.5f : 5.0f / 127,
                              .tensor = {}};
  const auto& any = definition_of(info).any_artifact;
  if (any && dim > 0 && dim <= 1024) {
    std::vector<float>& tensor = tensors[{info.name, dim}];
    if (tensor.empty()) tensor = any(dim);
    artifacts.tensor = tensor;
  }
  return artifacts;
}

inline Result<std::unique_ptr<Codec>> bind_for_test(const FormatInfo& info, Side side, int dim,
                                                    Isa isa = active_isa()) {
  const CodecArtifacts artifacts = test_artifacts(info, dim);
  CodecBinding binding;
  binding.side = side;
  binding.dim = dim;
  binding.seed = 7;
  binding.isa = isa;
  binding.artifacts = &artifacts;
  return bind_codec(info, binding);
}

// Calls visit(Bound) for every side and given width of a format that binds.
template <typename Visit>
void for_codecs_of(const FormatDefinition& definition, std::span<const int> dims, Visit visit) {
  for (const Side side : kSides) {
    for (const int dim : dims) {
      auto codec = bind_for_test(definition.info, side, dim);
      if (!codec.ok()) continue;
      const Bound bound{&definition, side, dim, std::move(codec).value()};
      SCOPED_TRACE(bound.label());
      visit(bound);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

// The same for every tested format (tested_formats.h).
template <typename Visit>
void for_every_codec(Visit visit, std::span<const int> dims = kTestDims) {
  for (const FormatDefinition& definition : all_definitions()) {
    if (!is_tested(definition.info)) continue;
    for_codecs_of(definition, dims, visit);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

inline double sum_of_squares(const Rows& x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * v;
  return sum;
}

// 10·log10(signal / noise).
inline double sqnr_db(const Rows& x, const Rows& y) {
  double noise = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double e = static_cast<double>(x[i]) - y[i];
    noise += e * e;
  }
  return 10 * std::log10(sum_of_squares(x) / noise);
}

inline bool all_finite(const Rows& rows) {
  for (const float x : rows) {
    if (!std::isfinite(x)) return false;
  }
  return true;
}

inline float largest_difference(const Rows& a, const Rows& b) {
  float most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(a[i] - b[i]));
  return most;
}

}  // namespace kvant
