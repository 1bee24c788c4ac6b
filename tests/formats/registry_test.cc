// The registry as a user meets it: names, widths and refusals.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "codec_helpers.h"

namespace kvant {
namespace {

TEST(Registry, NamesEveryFormatOnce) {
  std::set<std::string> names;
  for (const FormatInfo& info : all_formats()) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_FALSE(info.summary.empty()) << info.name;
    EXPECT_FALSE(info.family.empty()) << info.name;
    EXPECT_GT(info.nominal_bits, 0) << info.name;
  }
}

TEST(Registry, FindsEveryFormatByItsName) {
  for (const FormatInfo& info : all_formats()) {
    const auto found = find_format(info.name);
    ASSERT_TRUE(found.ok()) << info.name;
    EXPECT_EQ(*found, &info);
  }
}

TEST(Registry, GivesEveryScalarFormatARotatedVariant) {
  for (const FormatInfo& info : all_formats()) {
    if (info.exact || info.rotated || info.needs.artifacts) continue;
    const auto rotated = find_format(info.name + "_rot");
    ASSERT_TRUE(rotated.ok()) << info.name;
    EXPECT_TRUE((*rotated)->rotated);
  }
}

TEST(Registry, LayoutsNameAFormatThatSharesTheBytes) {
  for (const FormatInfo& info : all_formats()) {
    const auto layout = find_format(info.layout);
    ASSERT_TRUE(layout.ok()) << info.name;
    const auto bits = sealed_bits(info, Side::kKey, 128);
    const auto layout_bits = sealed_bits(**layout, Side::kKey, 128);
    ASSERT_TRUE(bits.ok() && layout_bits.ok()) << info.name;
    EXPECT_EQ(*bits, *layout_bits) << info.name;
  }
}

TEST(Registry, SuggestsTheNearestNames) {
  const auto found = find_format("int4_tokn_z");
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), Code::kNotFound);
  EXPECT_NE(found.status().message().find("int4_token_z"), std::string::npos)
      << found.status().message();
}

TEST(Registry, RefusesADynamicScalePerTensor) {
  for (const FormatInfo& info : all_formats()) {
    if (info.granularity == Granularity::kTensor) {
      EXPECT_EQ(info.scale_source, ScaleSource::kGiven) << info.name;
    }
  }
}

TEST(Registry, CaseB1_EveryWidthIsServedOrRefusedWithWhatWorks) {
  for (const FormatDefinition& definition : all_definitions()) {
    const FormatInfo& info = definition.info;
    for (const Side side : kSides) {
      if (!(side == Side::kKey ? info.for_keys : info.for_values)) continue;
      for (const int dim : {-64, 0, 8, 16, 24, 80, 96, 100, 128, 256, 1024, 1040, 1 << 30}) {
        const std::string label = info.name + " of " + std::to_string(dim);
        auto codec = bind_for_test(info, side, dim);
        // Sections of an odd number of bits are 32 channels wide.
        const bool sections = info.name.starts_with("tc");
        const int multiple = sections && std::fmod(info.nominal_bits, 2) != 0 ? 32 : 16;
        const bool bad_width = dim < 16 || dim > 1024 || dim % multiple != 0;
        const bool bad_group = info.group > 0 && dim % std::max(info.group, 1) != 0;
        // Wider heads may leave 32 bits in integer sums (docs/numerics.md).
        if (dim <= 256 || bad_width || bad_group) {
          EXPECT_EQ(codec.ok(), !bad_width && !bad_group) << label;
        }
        if (!codec.ok()) {
          EXPECT_EQ(codec.status().code(), Code::kUnsupported) << label;
          EXPECT_NE(codec.status().message().find(info.name), std::string::npos) << label;
          EXPECT_NE(codec.status().message().find(std::to_string(dim)), std::string::npos) << label;
        } else if (is_tested(info) && info.name != "f32" && dim <= 256) {  // as wide as bands go
          const Bound bound{&definition, side, dim, std::move(codec).value()};
          const Rows& rows = gaussian_rows(dim, kTestSeed);
          EXPECT_GE(sqnr_db(rows, bound.round_trip(rows)), definition.band(side, dim).low_db)
              << label;
        }
      }
    }
  }
  const auto group64 = sealed_bits(**find_format("int4_g64"), Side::kKey, 96);
  ASSERT_FALSE(group64.ok());
  EXPECT_NE(group64.status().message().find("groups that divide it: 32"), std::string::npos)
      << group64.status().message();
}

TEST(Registry, CaseB1_GroupsThatAreNoneAreNoFormats) {
  for (const char* name :
       {"int4_g0", "int4_g-32", "int4_g31", "int4_g100", "int4_g", "int4_g032"}) {
    EXPECT_EQ(find_format(name).status().code(), Code::kNotFound) << name;
  }
}

TEST(Registry, CaseE6_RefusesGivenScalesThatVanishOrOverflow) {
  for (const FormatInfo& info : all_formats()) {
    if (info.scale_source != ScaleSource::kGiven) continue;
    for (const float scale : {0.0f, -1.0f, NAN, INFINITY, static_cast<float>(1e-50), 1e-30f, 1e30f,
                              std::numeric_limits<float>::denorm_min()}) {
      const CodecArtifacts artifacts = {.tensor_scale = scale, .tensor = {}};
      CodecBinding binding;
      binding.layer = 3;
      binding.dim = 64;
      binding.artifacts = &artifacts;
      const auto codec = bind_codec(info, binding);
      ASSERT_FALSE(codec.ok()) << info.name << " " << scale;
      EXPECT_NE(codec.status().message().find("layer 3"), std::string::npos);
    }
    CodecBinding binding;
    binding.dim = 64;
    EXPECT_EQ(bind_codec(info, binding).status().code(), Code::kUnsupported) << info.name;
  }
}

// A `_head` format takes a given scale in place of each page's own, in the same bytes.
TEST(Registry, GivenScalesOfHeadsAreUsedAndChecked) {
  std::vector<float> rows(kPageTokens * 64, 0.5f);
  rows[7] = -3;
  for (const FormatInfo& info : all_formats()) {
    const auto bind = [&](float scale) {
      const CodecArtifacts artifacts = {.head_scale = scale, .tensor = {}};
      CodecBinding binding;
      binding.layer = 3;
      binding.dim = 64;
      binding.artifacts = &artifacts;
      return bind_codec(info, binding);
    };
    if (info.granularity != Granularity::kHead) continue;
    ASSERT_TRUE(bind(0).ok()) << info.name << ": none given";
    EXPECT_EQ(bind(0.25f).ok(), takes_given_scale(info)) << info.name;
    if (!takes_given_scale(info)) continue;
    for (const float bad : {-1.0f, NAN, INFINITY, 1e-30f, 1e30f})
      EXPECT_NE(bind(bad).status().message().find("layer 3"), std::string::npos) << info.name;
    if (info.rotated) continue;
    const auto largest_decoded = [&](float scale) {
      const auto codec = bind(scale).value();
      AlignedArray<std::byte> page(codec->page_bytes());
      PageInput input;
      input.rows = rows.data();
      codec->encode(input, page.data());
      std::vector<float> decoded(rows.size());
      codec->decode(page.data(), decoded.data());
      return std::pair{decoded[7], decoded[8]};
    };
    EXPECT_NEAR(largest_decoded(0).first, -3, 0.01) << info.name;
    // A scale for values up to 1.27 (int8) or 4.48 (FP8) clips, or doesn't.
    EXPECT_NEAR(largest_decoded(0.01f).first, info.name.starts_with("int8") ? -1.27f : -3.0f, 0.25)
        << info.name;
    EXPECT_NEAR(largest_decoded(0.01f).second, 0.5f, 0.05) << info.name;
    EXPECT_EQ(bind(0.01f).value()->page_bytes(), bind(0).value()->page_bytes());
  }
}

TEST(Registry, SealedBitsCountCodesMetadataAndPadding) {
  const auto bits = [](const char* name, int dim) {
    return *sealed_bits(**find_format(name), Side::kKey, dim);
  };
  EXPECT_EQ(bits("bf16", 64), 16);
  EXPECT_EQ(bits("int8_token", 64), 8 + 16.0 / 64);
  EXPECT_EQ(bits("int4_token_z", 128), 4 + 32.0 / 128);
  EXPECT_EQ(bits("int4_g32_z", 128), 4 + 32.0 / 32);
  EXPECT_EQ(bits("int2_channel_z_rot", 128), 2 + 32.0 / 64);
  EXPECT_EQ(bits("int2_channel_z_norm_rot", 128), 2 + 32.0 / 64 + 8.0 / 128);
  EXPECT_EQ(bits("int8_head", 64), 8 + 64 * 8.0 / (64 * 64));  // two bytes, padded to 64
  EXPECT_EQ(bits("fp8_e4m3", 80), 8);
}

// The matrix that a rotated codec applies to queries, row i the image of the unit vector i.
std::vector<Rows> rotation_of(const Codec& codec, int dim) {
  const auto width = static_cast<size_t>(dim);
  Rows units(width * width, 0.0f);
  for (size_t i = 0; i < width; ++i) units[i * width + i] = 1;
  AlignedArray<std::byte> prepared(codec.query_bytes(dim));
  codec.prepare_query(units.data(), dim, prepared.data());
  const auto* images = reinterpret_cast<const float*>(prepared.data());  // FP8 keeps them as floats
  std::vector<Rows> out;
  for (size_t i = 0; i < width; ++i) out.emplace_back(images + i * width, images + (i + 1) * width);
  return out;
}

double dot(const Rows& a, const Rows& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

TEST(Registry, CaseB2_RotationIsOrthonormalAtEveryWidth) {
  for (const int dim : {16, 64, 80, 96, 160, 192, 256, 512}) {
    const auto codec = bind_for_test(**find_format("fp8_e4m3_rot"), Side::kKey, dim);
    ASSERT_TRUE(codec.ok());
    const std::vector<Rows> rotation = rotation_of(**codec, dim);
    double worst = 0;
    for (size_t i = 0; i < rotation.size(); ++i) {
      for (size_t j = 0; j <= i; ++j) {
        worst = std::max(worst, std::fabs(dot(rotation[i], rotation[j]) - (i == j ? 1 : 0)));
      }
    }
    EXPECT_LT(worst, 1e-5) << dim;
    EXPECT_LT(std::fabs(rotation[0][0]), 0.3) << dim << ": it does nothing";

    // q·k is what it was, and a row turned back is the row.
    Rng rng(static_cast<uint64_t>(dim));
    Rows q(static_cast<size_t>(dim)), k(q.size()), rq(q.size(), 0.0f), rk(q.size(), 0.0f);
    for (float& x : q) x = rng.normal() / std::sqrt(static_cast<float>(dim));
    for (float& x : k) x = rng.normal() / std::sqrt(static_cast<float>(dim));
    for (size_t i = 0; i < q.size(); ++i) {
      for (size_t c = 0; c < q.size(); ++c) {
        rq[c] += q[i] * rotation[i][c];
        rk[c] += k[i] * rotation[i][c];
      }
    }
    EXPECT_NEAR(dot(rq, rk), dot(q, k), 1e-4) << dim;
    (*codec)->finish(rk.data(), 1, rk.size());
    EXPECT_LT(largest_difference(rk, k), 1e-5f) << dim;
  }
  EXPECT_EQ(bind_for_test(**find_format("fp8_e4m3_rot"), Side::kKey, 100).status().code(),
            Code::kUnsupported);
}

}  // namespace
}  // namespace kvant
