// Sensitivities in a sidecar.
#include "calibrate/sensitivities.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "calibrate/sidecar.h"
#include "files/checksum.h"
#include "files/temp_file.h"

namespace kvant {
namespace {

using testing::HasSubstr;

Sensitivities some_sensitivities() {
  Sensitivities out{.data = "d2",
                    .command = "kvant sensitivity \"x\" --text y",
                    .tokens = 1024,
                    .formats = {},
                    .proposal = {.kv = "int4",
                                 .kv_layers = "0-1=int8;5=int2_token/bf16",
                                 .budget = 4.1,
                                 .sealed_bits = 1.0 / 3,
                                 .kld = 1e-300,
                                 .kld_error = 0.1}};
  for (const char* format : {"int8", "tc4/int4_token_z_lsq_rot"}) {
    FormatSensitivities& of = out.formats.emplace_back();
    of.format = format;
    for (const int layer : {0, 3}) {  // layers between them have no pages
      of.layers.push_back({.layer = layer,
                           .scores = 0.1 / (layer + 1),
                           .outputs = std::numeric_limits<double>::denorm_min(),
                           .kld = -1e-9,
                           .kld_error = 2.0 / 3,
                           .heads = {{0.5, 0.25}, {1.0 / 7, 3}}});
    }
  }
  return out;
}

std::string sidecar_with(const Sensitivities& sensitivities) {
  SidecarContents contents;
  contents.facts.model = "m";
  contents.sensitivities = sensitivities;
  return make_sidecar(contents);
}

TEST(Sensitivities, ComeBackToTheBit) {
  const Sensitivities want = some_sensitivities();
  const TempFile file(sidecar_with(want), ".safetensors");
  const auto sidecar = Sidecar::open(file.path());
  ASSERT_TRUE(sidecar.ok()) << sidecar.status().message();
  EXPECT_EQ(sidecar->contents().sensitivities, want);
  EXPECT_FALSE(sidecar->is_calibration());
  EXPECT_TRUE(sidecar->all_formats().empty());
}

TEST(Sensitivities, WhatIsntOneIsRefusedByName) {
  const std::string whole = sidecar_with(some_sensitivities());
  const auto said = [&](const std::string& from, const std::string& to) {
    std::string bytes = whole;
    const size_t at = bytes.find(from);
    EXPECT_NE(at, std::string::npos);
    bytes.replace(at, from.size(), to);
    const TempFile file(with_checksum(bytes), ".safetensors");
    const Status status = Sidecar::open(file.path()).status();
    EXPECT_EQ(status.code(), Code::kCorrupt);
    return status.message();
  };
  EXPECT_THAT(said("\"F64\",\"shape\":[4]", "\"I64\",\"shape\":[4]"),
              HasSubstr("'layers.0.sensitivity.int8.layer' isn't what kvant sensitivity writes"));
  EXPECT_THAT(said("\"F64\",\"shape\":[2,2]", "\"F64\",\"shape\":[4,1]"),
              HasSubstr("'layers.0.sensitivity.int8.heads' isn't"));
  Sensitivities infinite = some_sensitivities();
  infinite.formats[1].layers[1].kld = std::numeric_limits<double>::infinity();
  const TempFile file(sidecar_with(infinite), ".safetensors");
  EXPECT_THAT(Sidecar::open(file.path()).status().message(),
              HasSubstr("layers.3.sensitivity.tc4/int4_token_z_lsq_rot.layer"));
}

}  // namespace
}  // namespace kvant
