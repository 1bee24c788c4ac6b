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
    if (info.exact || info.rotated) continue;
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
  for (const FormatInfo& info : all_formats()) {
    for (const int dim : {-64, 0, 8, 16, 24, 80, 96, 100, 128, 1024, 1040, 1 << 30}) {
      const auto codec = bind_for_test(info, Side::kKey, dim);
      const bool bad_width = dim < 16 || dim > 1024 || dim % 16 != 0;
      const bool bad_group = info.group > 0 && dim % std::max(info.group, 1) != 0;
      if (!codec.ok()) {
        EXPECT_NE(codec.status().message().find(info.name), std::string::npos);
        EXPECT_NE(codec.status().message().find(std::to_string(dim)), std::string::npos);
      }
      if (bad_width || bad_group) {
        EXPECT_FALSE(codec.ok()) << info.name << " of " << dim;
      }
    }
  }
  const auto group64 = sealed_bits(**find_format("int4_g64"), Side::kKey, 96);
  ASSERT_FALSE(group64.ok());
  EXPECT_NE(group64.status().message().find("groups that divide it: 32"), std::string::npos)
      << group64.status().message();
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

TEST(Registry, SealedBitsCountCodesMetadataAndPadding) {
  const auto bits = [](const char* name, int dim) {
    return *sealed_bits(**find_format(name), Side::kKey, dim);
  };
  EXPECT_EQ(bits("bf16", 64), 16);
  EXPECT_EQ(bits("int8_token", 64), 8 + 16.0 / 64);
  EXPECT_EQ(bits("int4_token_z", 128), 4 + 32.0 / 128);
  EXPECT_EQ(bits("int4_g32_z", 128), 4 + 32.0 / 32);
  EXPECT_EQ(bits("int2_channel_z_rot", 128), 2 + 32.0 / 64);
  EXPECT_EQ(bits("int8_head", 64), 8 + 64 * 8.0 / (64 * 64));  // two bytes, padded to 64
  EXPECT_EQ(bits("fp8_e4m3", 80), 8);
}

TEST(Registry, CaseB2_RotationKeepsProductsOfEveryWidth) {
  for (const int dim : {16, 64, 80, 96, 160, 192, 256, 512}) {
    const auto codec = bind_for_test(**find_format("fp8_e4m3_rot"), Side::kKey, dim);
    ASSERT_TRUE(codec.ok());
    // Through finish() a row is turned back; what a query sees is the transpose of the same matrix,
    // so rotating and turning back a unit row must return it.
    Rows q(static_cast<size_t>(dim));
    Rng rng(static_cast<uint64_t>(dim));
    for (float& x : q) x = rng.normal();
    AlignedArray<std::byte> prepared((*codec)->query_bytes(1));
    (*codec)->prepare_query(q.data(), 1, prepared.data());
    Rows turned(q.size());
    std::memcpy(turned.data(), prepared.data(), q.size() * sizeof(float));
    EXPECT_NEAR(sum_of_squares(turned), sum_of_squares(q), 1e-4 * sum_of_squares(q)) << dim;
    EXPECT_GT(largest_difference(turned, q), 0.1f);
    (*codec)->finish(turned.data(), 1, q.size());
    EXPECT_LT(largest_difference(turned, q), 1e-5f) << dim;
  }
}

}  // namespace
}  // namespace kvant
