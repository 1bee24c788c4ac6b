// In which order a workload tries the formats.
#include <gmock/gmock.h>

#include "made_shapes.h"

namespace kvant {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

Plan tried(std::vector<std::string> formats, uint64_t memory = uint64_t{1} << 40,
           const ModelShape& shape = model(std::vector<ModelLayer>(4, full(8)))) {
  PlanRequest request{.formats = std::move(formats)};
  request.workload = Workload{.prompt = {1000, 4000}, .output = {100, 400}, .concurrency = 4};
  request.memory = DeviceMemory{.total = memory};
  auto plan = plan_model(shape, request);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return *std::move(plan);
}

TEST(Quality, MeasuredFormatsAreTriedBestFirst) {
  const Plan plan = tried({"int2", "int4", "int8", "bf16"});
  EXPECT_THAT(plan.tried, ElementsAre("bf16", "int8", "int4", "int2"));
  EXPECT_THAT(plan.notes, IsEmpty());
}

TEST(Quality, APairThatIsAPresetsExpansionRanksAsThePreset) {
  const std::string int8 = parse_format_pair("int8", {})->name();
  const std::string int2 = parse_format_pair("int2", {})->name();
  const Plan plan = tried({int2, "int4", int8, "k8v4"});
  EXPECT_THAT(plan.tried, ElementsAre(int8, "k8v4", "int4", int2));
  EXPECT_THAT(plan.notes, IsEmpty()) << "nothing was guessed";
}

// A preset's V depends on the width of heads, and its K on the calibration.
TEST(Quality, PairsOfWideHeadsAndOfCalibrationsRankAsTheirPresets) {
  ModelLayer wide = full(8);
  for (CacheStream& stream : wide.streams) stream.k_dim = stream.v_dim = 256;
  ModelShape of_wide = model(std::vector<ModelLayer>(4, wide));
  ModelShape calibrated = model(std::vector<ModelLayer>(4, full(8)));
  calibrated.calibrated.assign(4, {"tc4", "tc2"});
  for (const ModelShape& shape : {of_wide, calibrated}) {
    ModelTraits traits = {.value_dim = shape.layers[0].streams[0].v_dim};
    if (!shape.calibrated.empty()) traits.calibrated = shape.calibrated[0];
    const std::string int4 = parse_format_pair("int4", traits)->name();
    const std::string int2 = parse_format_pair("int2", traits)->name();
    ASSERT_NE(int4, parse_format_pair("int4", {})->name());
    const Plan plan = tried({int2, "int3", int4, "k8v4"}, uint64_t{1} << 40, shape);
    EXPECT_THAT(plan.tried, ElementsAre("k8v4", int4, "int3", int2));
    EXPECT_THAT(plan.notes, IsEmpty()) << "nothing was guessed";
  }
}

TEST(Quality, AFormatThatIsNotMeasuredIsPlacedByItsBitsAndSaid) {
  const Plan plan = tried({"int3", "int2", "nf4_g64", "kivi4", "bf16", "int8_g64"});
  EXPECT_THAT(plan.tried, ElementsAre("bf16", "int8_g64", "kivi4", "nf4_g64", "int3", "int2"));
  EXPECT_THAT(plan.notes,
              Contains("nf4_g64, int8_g64 aren't measured on real models; they are placed by "
                       "their bits"));
  EXPECT_THAT(tried({"int2", "nf4_g64"}).notes,
              Contains("nf4_g64 isn't measured on real models; it is placed by its bits"));
}

TEST(Quality, WhatWasAskedForInAnotherOrderIsFoundFirst) {
  const Plan all = tried({"int2", "nf4_g64"});
  const uint64_t small = all.workload[0].p95.device_needed;
  const uint64_t large = all.workload[1].p95.device_needed;
  ASSERT_LT(small, large);
  EXPECT_EQ(tried({"int2", "nf4_g64"}, large).first_fit, "nf4_g64");
  EXPECT_EQ(tried({"int2", "nf4_g64"}, large - 1).first_fit, "int2");
}

}  // namespace
}  // namespace kvant
