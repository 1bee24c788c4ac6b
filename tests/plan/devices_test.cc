// What stands on each device, and what all of them hold together.
#include <gmock/gmock.h>

#include "made_shapes.h"

namespace kvant {
namespace {

using ::testing::Contains;

PlanRow row_on(const ModelShape& shape, const Sharding& sharding, PlanRequest request) {
  request.sharding = sharding;
  const auto plan = plan_model(shape, request);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan->rows.at(0);
}

TEST(CachePlanner, ContextRanksDealOutThePagesOfEverySequence) {
  for (const int ranks : {2, 3, 4}) {
    const CachePlanner planner = planner_with(model({full(1)}), "bf16", {.context_ranks = ranks});
    const auto divide_up = [&](int n) { return static_cast<uint64_t>((n + ranks - 1) / ranks); };
    EXPECT_EQ(kv_bytes(planner, {.tokens = 640, .sequences = 5}), 5 * divide_up(10) * kPage);
    EXPECT_EQ(kv_bytes(planner, {.tokens = 128, .sequences = 5, .shared_prefix = 64}),
              (divide_up(2) + 4) * kPage)
        << "some rank holds the page that isn't shared";
  }
}

TEST(Devices, ContextRanksTogetherHoldEveryPageOnce) {
  const ModelShape shape = model({full(8), sliding(2, 100)});
  for (const char* format : {"bf16", "int4"}) {
    for (const int64_t tokens : {1, 640, 5000}) {
      const PlanRequest request{.formats = {format}, .tokens = {tokens}, .batch = 3};
      const PlanRow whole = row_on(shape, {}, request);
      for (const int ranks : {2, 3, 7}) {
        const PlanRow dealt = row_on(shape, {.context = ranks}, request);
        EXPECT_EQ(dealt.bytes.kv(), whole.bytes.kv()) << format << tokens << ranks;
        EXPECT_EQ(dealt.bytes.needed, whole.bytes.needed);
        EXPECT_GE(dealt.device_bytes * static_cast<uint64_t>(ranks), whole.bytes.kv());
        EXPECT_LE(dealt.device_bytes, whole.device_bytes);
      }
    }
  }
}

TEST(Devices, EffectiveBitsAreThoseOfOneCopyOfTheCache) {
  const ModelShape shape = model({full(2), latent(576)});
  const PlanRequest request{.formats = {"int4"}, .tokens = {1000}, .batch = 2};
  const PlanRow whole = row_on(shape, {}, request);
  const PlanRow copied = row_on(shape, {.tensor = 8, .context = 2}, request);
  EXPECT_GT(copied.bytes.kv(), whole.bytes.kv()) << "latents and heads are replicated";
  EXPECT_EQ(copied.effective_bits, whole.effective_bits);
  EXPECT_EQ(copied.bytes.ideal, whole.bytes.ideal);
}

TEST(Devices, ConstantStateIsWholeOnEveryContextRank) {
  ModelShape shape = model({state_of(1000, 0, 0), full(1)});
  const PlanRequest request{
      .formats = {"bf16"}, .tokens = {640}, .batch = 3, .sharding = {.context = 4}};
  const Plan plan = *plan_model(shape, request);
  EXPECT_EQ(plan.rows[0].bytes.state, 4u * 3 * 4000);
  EXPECT_EQ(plan.rows[0].device_bytes, 3u * 4000 + 3 * 3 * kPage);
  EXPECT_THAT(plan.notes,
              Contains("constant state is counted whole on each of the 4 context ranks"));
}

TEST(Devices, APipelineStageHoldsItsLayersShareOfTheWeightsAndTheEndsTheirOwn) {
  const ModelShape shape = model({full(1), full(1), full(1)});
  PlanRequest request{.formats = {"bf16"}, .tokens = {64}, .memory = DeviceMemory{1 << 20}};
  request.weight_bytes = 300 + 50 + 70;
  request.ends = {.embeddings = 50, .output = 70};
  const auto weights = [&](const Sharding& sharding) {
    return row_on(shape, sharding, request).device_weights;
  };
  EXPECT_EQ(weights({}), 420u);
  EXPECT_EQ(weights({.pipeline = 2}), 200u + 50) << "two layers and the embeddings";
  EXPECT_EQ(weights({.tensor = 2, .pipeline = 2}), 125u);
  EXPECT_EQ(weights({.pipeline = 3}), 170u) << "layers are alike: the largest end decides";
  request.weight_bytes = 350;
  request.ends = {.embeddings = 50, .output = 50, .tied = true};
  EXPECT_EQ(weights({}), 350u);
  EXPECT_EQ(weights({.pipeline = 3}), 150u) << "a copy at the end";
}

TEST(Devices, MemoryAddsUpOnTheDeviceWithLeastToSpare) {
  const ModelShape shape = model({full(1), full(1), full(1)});
  PlanRequest request{.formats = {"int4"}, .tokens = {1000}, .weight_bytes = 100'000};
  request.memory = DeviceMemory{.total = 1'000'000, .workspace = 1000, .activation = 100};
  for (const Sharding& sharding : {Sharding{}, {.pipeline = 2}, {.context = 2}}) {
    const PlanRow row = row_on(shape, sharding, request);
    EXPECT_EQ(static_cast<int64_t>(row.device_weights + row.device_needed + 1100) + row.spare_bytes,
              1'000'000);
  }
}

TEST(Devices, ALengthBeyondTheModelsIsMeasuredAgainstTheMemoryAlone) {
  ModelShape shape = model({full(1)});
  shape.max_positions = 640;
  PlanRequest request{.tokens = {640, 6400}, .memory = DeviceMemory{200 * kPage}};
  request.workload = Workload{.prompt = {6000, 7000}, .output = {400, 1000}};
  const Plan plan = *plan_model(shape, request);
  EXPECT_EQ(plan.rows[0].max_context, 640);
  EXPECT_TRUE(plan.rows[0].context_is_models);
  EXPECT_TRUE(*plan.rows[1].fits);
  EXPECT_EQ(plan.rows[1].max_context, 200 * 64) << "what fits is never longer than what could";
  EXPECT_FALSE(plan.rows[1].context_is_models);
  EXPECT_THAT(plan.notes,
              Contains("6400, 8000 tokens are more than the 640 that the model is made for"));
}

TEST(CachePlanner, ATokenOfTheTextAddsNothingToAFixedSource) {
  ModelLayer layer = full(2);
  layer.streams.push_back(layer.streams[0]);
  layer.streams[1].kind = StreamKind::kCross;
  const CachePlanner planner = planner_with(model({layer}), "bf16");
  EXPECT_EQ(planner.bytes_per_token(), 2 * 2 * kDim * 2);
  EXPECT_EQ(planner.bytes_per_token_long(), 2 * 2 * kDim * 2);
}

}  // namespace
}  // namespace kvant
