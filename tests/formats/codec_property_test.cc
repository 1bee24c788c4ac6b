// What every registered codec must do with any rows: looped over the registry, so that registering
// is testing.
#include <cstring>

#include "codec_helpers.h"

namespace kvant {
namespace {

// For properties that don't depend on the width.
constexpr int kFewDims[] = {64, 80};

bool same_bytes(const AlignedArray<std::byte>& a, const AlignedArray<std::byte>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

TEST(EveryCodec, WritesEveryByteOfItsPage) {
  for_every_codec([](const Bound& bound) {
    const Rows rows = gaussian_rows(bound.dim, kTestSeed);
    EXPECT_TRUE(same_bytes(bound.encode(rows, 0x00), bound.encode(rows, 0xff)));
    EXPECT_EQ(bound.codec->page_bytes() % kAlignment, 0u);
  });
}

TEST(EveryCodec, DecodesGaussianRowsWithinItsBand) {
  for_every_codec([](const Bound& bound) {
    if (bound.definition->info.name == "f32") return;
    const Rows rows = gaussian_rows(bound.dim, kTestSeed);
    const DistortionBand band = bound.definition->band(bound.side, bound.dim);
    const double db = sqnr_db(rows, bound.round_trip(rows));
    EXPECT_GE(db, band.low_db);
    EXPECT_LE(db, band.high_db);
  });
}

TEST(EveryCodec, EncodesADecodedPageToTheSameBytesWhereItPromises) {
  for_every_codec([](const Bound& bound) {
    if (!bound.definition->idempotent) return;
    const auto page = bound.encode(gaussian_rows(bound.dim, kTestSeed));
    EXPECT_TRUE(same_bytes(page, bound.encode(bound.decode(page))));
  });
}

// Of both signs: a row of -0 once gave a scale of -0, whose inverse is infinite.
TEST(EveryCodec, KeepsZeros) {
  for_every_codec([](const Bound& bound) {
    for (const float zero : {0.0f, -0.0f}) {
      const Rows zeros = constant_rows(bound.dim, zero);
      const Rows back = bound.round_trip(zeros);
      ASSERT_TRUE(all_finite(back));
      EXPECT_EQ(largest_difference(zeros, back), 0.0f);
    }
  });
}

bool has_float_elements(const FormatInfo& info) {
  return info.name.find("fp8") != std::string::npos || info.name.find("fp4") != std::string::npos;
}

// How far a value may come back that sets its own scale, in parts of itself: a scale that is a
// power of two leaves up to 8 for elements that end at 6, and 512 for 448.
double own_scale_tolerance(const FormatInfo& info) {
  if (info.name.starts_with("mxfp4")) return 0.25;
  return has_float_elements(info) ? 0.13 : 2e-3;
}

// A group whose values are all equal comes back as that value, to the precision of what stores it:
// binary16 for zero points, half a step of the grid where a symmetric one ends on the value (and of
// FP8 and FP4), and the rounding of a rotation.
TEST(EveryCodec, CaseB4_KeepsConstants) {
  for_every_codec(
      [](const Bound& bound) {
        const FormatInfo& info = bound.definition->info;
        if (info.scale_source == ScaleSource::kGiven) return;
        for (const float value : {3.0f, -3.0f, 0.1f, 6e4f, -6e4f, 1e-5f}) {
          const Rows rows = constant_rows(bound.dim, value);
          const Rows back = bound.round_trip(rows);
          ASSERT_TRUE(all_finite(back));
          // A fixed scale ends at 448; a rotated row grows by up to the root of its width.
          const bool bounded = info.scale_source == ScaleSource::kFixed || info.rotated;
          if (bounded && std::fabs(value) > 400) continue;
          // A rotated constant row has large and small channels: it is as exact as any row is.
          if (info.rotated && info.nominal_bits < 5) continue;
          const double tolerance = info.rotated ? 0.5 : own_scale_tolerance(info);
          const double tiny = has_float_elements(info) ? 4e-5 : 4e-6;  // subnormal metadata
          EXPECT_LE(largest_difference(rows, back), std::fabs(value) * tolerance + tiny) << value;
        }
      },
      kFewDims);
}

// A range too small for binary16 scales neither divides by zero nor leaves the values'
// neighbourhood.
TEST(EveryCodec, CaseB4_SurvivesTinyRanges) {
  for_every_codec(
      [](const Bound& bound) {
        const FormatInfo& info = bound.definition->info;
        Rng rng(kTestSeed);
        Rows rows = constant_rows(bound.dim, 3.0f);
        for (float& x : rows) x += 1e-6f * static_cast<float>(rng.uniform());
        const Rows back = bound.round_trip(rows);
        ASSERT_TRUE(all_finite(back));
        if (info.exact || info.rotated || info.scale_source != ScaleSource::kDynamic) return;
        const float tolerance = has_float_elements(info) ? 0.2f : 3e-3f;
        EXPECT_LE(largest_difference(rows, back), tolerance);
      },
      kFewDims);
}

// One value of 6e4 in a group of zeros, of small ones, or of its opposite: scales near the end of
// binary16. What shares no scale with it isn't touched.
TEST(EveryCodec, CaseB4_CarriesOneHugeValue) {
  for_every_codec(
      [](const Bound& bound) {
        const FormatInfo& info = bound.definition->info;
        const auto dim = static_cast<size_t>(bound.dim);
        for (const float rest : {0.0f, 1e-3f, -6e4f}) {
          Rows rows = constant_rows(bound.dim, rest);
          rows[9 * dim + 5] = 6e4f;
          const Rows back = bound.round_trip(rows);
          ASSERT_TRUE(all_finite(back)) << rest;
          const bool bounded =
              info.scale_source == ScaleSource::kFixed || info.scale_source == ScaleSource::kGiven;
          const bool mixes = info.rotated || info.needs.artifacts;  // channels with one another
          // One step of a single bit is the whole range, here more than binary16 reaches.
          if (!bounded && !mixes && info.nominal_bits > 1) {
            const double tolerance = std::max(0.04, own_scale_tolerance(info));
            EXPECT_NEAR(back[9 * dim + 5], 6e4f, tolerance * 6e4) << rest;
          }
          if (rest == 0) {
            // Token 8 shares channels with it, not a token; token 9's other channels the reverse.
            const size_t apart = info.granularity == Granularity::kChannel ? 9 * dim + 6 : 8 * dim;
            if (info.granularity != Granularity::kHead && !mixes) {
              EXPECT_EQ(back[apart], 0.0f);
            }
          }
        }
      },
      kFewDims);
}

TEST(EveryCodec, SaturatesHugeRowsAndVanishesTinyOnesWithoutInfinities) {
  for_every_codec(
      [](const Bound& bound) {
        for (const float magnitude : {6e4f, 65504.0f, 65520.0f, 1e9f, 3.4e38f, 1e-30f, 1e-40f}) {
          Rng rng(kTestSeed);
          Rows rows = gaussian_rows(bound.dim, kTestSeed);
          for (float& x : rows) x = rng.below(2) ? magnitude : -magnitude;
          rows[5] = 0;
          ASSERT_TRUE(all_finite(bound.round_trip(rows))) << magnitude;
        }
      },
      kFewDims);
}

// One channel 100 times the others' size costs the others precision; what holds for every format is
// that the outlier itself stays within its own scale's resolution.
TEST(EveryCodec, CarriesAnOutlierChannel) {
  for_every_codec(
      [](const Bound& bound) {
        if (bound.definition->info.scale_source == ScaleSource::kGiven) return;
        Rows rows = gaussian_rows(bound.dim, kTestSeed);
        const auto dim = static_cast<size_t>(bound.dim);
        for (size_t t = 0; t < kPageTokens; ++t) rows[t * dim + 3] = 100.0f + rows[t * dim + 3];
        const Rows back = bound.round_trip(rows);
        ASSERT_TRUE(all_finite(back));
        for (size_t t = 0; t < kPageTokens; ++t) {
          const float x = rows[t * dim + 3];
          EXPECT_NEAR(back[t * dim + 3], x, 0.5f * std::fabs(x)) << "token " << t;
        }
      },
      kFewDims);
}

TEST(EveryCodec, DecodesArbitraryBytesWithoutHarm) {
  for_every_codec([](const Bound& bound) {
    AlignedArray<std::byte> page(bound.codec->page_bytes());
    Rng rng(kTestSeed);
    for (size_t i = 0; i < page.size(); ++i) page[i] = static_cast<std::byte>(rng.next());
    bound.decode(page);
  });
}

// A factor per token is there for pages whose tokens differ in size: the large one no longer sets
// the steps of the others.
TEST(TokenNorm, OneLargeTokenDoesNotCoarsenTheOthers) {
  const int dim = 128;
  Rows rows = gaussian_rows(dim, kTestSeed);
  const auto large = rows.begin() + 20 * dim;
  for (auto x = large; x != large + dim; ++x) *x *= 12.0f;
  std::fill_n(rows.begin() + 40 * dim, dim, 0.0f);  // and one that is nothing
  const auto error_of_others = [&](const std::string& name) {
    const FormatInfo& info = **find_format(name);
    const Bound bound{nullptr, Side::kKey, dim, *bind_for_test(info, Side::kKey, dim)};
    const Rows back = bound.round_trip(rows);
    EXPECT_TRUE(all_finite(back));
    double sum = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const double e = static_cast<double>(rows[i]) - back[i];
      if (i / dim != 20) sum += e * e;
    }
    return sum;
  };
  for (const std::string bits : {"2", "3", "4", "8"}) {
    const double plain = error_of_others("int" + bits + "_channel_z");
    const double normed = error_of_others("int" + bits + "_channel_z_norm");
    EXPECT_LT(normed, plain / 4) << bits << " bits";
    EXPECT_GT(normed, plain / 400) << bits << " bits";
  }
}

}  // namespace
}  // namespace kvant
