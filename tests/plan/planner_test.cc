// CachePlanner, shard_model and plan_model on shapes made here: what a reader works out by hand.
#include <gmock/gmock.h>

#include "made_shapes.h"

namespace kvant {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string sharding_error(const ModelShape& shape, const Sharding& sharding) {
  const auto stages = shard_model(shape, sharding);
  return stages.ok() ? "it was sharded" : stages.status().message();
}

// --- Bytes ---

TEST(CachePlanner, TheClassicalFormulaIsItsSimplestCase) {
  const CachePlanner planner = planner_with(model({full(2), full(2), full(2)}), "bf16");
  // 2 · layers · sequences · tokens · heads · width · bytes
  EXPECT_EQ(kv_bytes(planner, {.tokens = 640, .sequences = 5}), 2u * 3 * 5 * 640 * 2 * kDim * 2);
  EXPECT_EQ(planner.bytes({.tokens = 640, .sequences = 5})->ideal, 2u * 3 * 5 * 640 * 2 * kDim * 2);
  EXPECT_EQ(planner.bytes_per_token(), 2 * 3 * 2 * kDim * 2);
  EXPECT_EQ(planner.bytes_per_token_long(), planner.bytes_per_token());
}

TEST(CachePlanner, BytesAreAStaircaseOfPagesAndTheIdealIsNot) {
  const CachePlanner planner = planner_with(model({full(1)}), "bf16");
  for (const auto& [tokens, pages] : {std::pair{0, 0}, {1, 1}, {64, 1}, {65, 2}, {128, 2}}) {
    const auto bytes = planner.bytes({.tokens = tokens});
    EXPECT_EQ(bytes->kv(), static_cast<uint64_t>(pages) * kPage) << tokens;
    EXPECT_EQ(bytes->ideal, static_cast<uint64_t>(tokens) * kPage / 64) << tokens;
  }
}

TEST(CachePlanner, FormatsSealAllButTheSinksAndTheOpenPage) {
  const CachePlanner planner = planner_with(model({full(1)}), "int8_token");
  const PlannedGroup& group = planner.groups()[0];
  ASSERT_TRUE(group.seals);
  EXPECT_EQ(group.exact_page, kPage);
  EXPECT_LT(group.sealed_page, kPage * 6 / 10);
  EXPECT_EQ(planner.bytes({.tokens = 1000})->sealed, 14 * group.sealed_page);
  EXPECT_EQ(planner.bytes({.tokens = 1000})->exact, 2 * kPage) << "page 0 and the open one";
  const CachePlanner exact =
      planner_with(model({full(1)}), "int8_token", {.sinks = 128, .exact_window = 192});
  EXPECT_EQ(exact.bytes({.tokens = 1000})->exact, (2 + 3 + 1) * kPage);
  EXPECT_EQ(exact.bytes({.tokens = 1000})->sealed, 10 * group.sealed_page);
}

TEST(CachePlanner, AWindowHoldsThePagesThatAQuerySees) {
  const CachePlanner planner = planner_with(model({sliding(1, 100)}), "bf16");
  EXPECT_EQ(planner.bytes({.tokens = 10000})->ideal, 100 * kPage / 64);
  for (int64_t tokens = 1; tokens < 1000; ++tokens) {
    const uint64_t bytes = kv_bytes(planner, {.tokens = tokens});
    EXPECT_LE(bytes, 3 * kPage) << tokens;
    EXPECT_GE(bytes, planner.bytes({.tokens = tokens})->ideal * 99 / 100) << tokens;
  }
  EXPECT_EQ(planner.bytes_per_token_long(), 0);
}

TEST(CachePlanner, AChunkIsHeldAsTheWindowThatContainsIt) {
  ModelLayer chunked = sliding(1, 128);
  chunked.streams[0].kind = StreamKind::kChunked;
  const CachePlanner planner = planner_with(model({chunked}), "bf16");
  EXPECT_EQ(kv_bytes(planner, {.tokens = 128 * 10}),
            kv_bytes(planner_with(model({sliding(1, 128)}), "bf16"), {.tokens = 128 * 10}));
}

TEST(CachePlanner, ALatentIsOneStreamAndStaysExact) {
  const ModelShape shape = model({latent(576), latent(576)});
  for (const char* format : {"bf16", "int8", "int4"}) {
    const CachePlanner planner = planner_with(shape, format);
    EXPECT_EQ(kv_bytes(planner, {.tokens = 640}), 2u * 640 * 576 * 2) << format;
    EXPECT_EQ(planner.sealed_bits().value, 0) << format;
  }
  const auto plan = plan_model(shape, {.formats = {"int8", "int4"}, .tokens = {640}});
  EXPECT_THAT(plan->notes, ElementsAre(HasSubstr("layers 0-1: K uses bf16 instead of int8_")))
      << "one sentence for all layers and formats";
}

TEST(CachePlanner, CompressedStreamsAddOneEntryForSeveralTokens) {
  ModelLayer layer = latent(kDim);
  layer.streams[0].kind = StreamKind::kCompressed;
  layer.streams[0].tokens_per_entry = 4;
  const CachePlanner planner = planner_with(model({layer}), "bf16");
  EXPECT_EQ(planner.bytes_per_token(), kDim * 2 / 4.0);
  EXPECT_EQ(kv_bytes(planner, {.tokens = 3}), 0u) << "no entry is full";
  EXPECT_EQ(kv_bytes(planner, {.tokens = 256}), 64u * kDim * 2);
  EXPECT_EQ(kv_bytes(planner, {.tokens = 260}), 2 * 64u * kDim * 2);
}

TEST(CachePlanner, CrossAttentionIsAsLongAsItsSource) {
  ModelLayer layer = full(2);
  layer.streams.push_back(layer.streams[0]);
  layer.streams[1].kind = StreamKind::kCross;
  const CachePlanner planner = planner_with(model({layer}), "bf16");
  const uint64_t self = kv_bytes(planner, {.tokens = 640});
  EXPECT_EQ(kv_bytes(planner, {.tokens = 640, .source_tokens = 1500}) - self, 24 * 2 * kPage);
  EXPECT_EQ(kv_bytes(planner,
                     {.tokens = 640, .sequences = 3, .shared_prefix = 640, .source_tokens = 64}) -
                self,
            3 * 2 * kPage)
      << "every sequence has a source of its own";
}

TEST(CachePlanner, ConstantStateIsCountedOncePerSequenceAtAnyLength) {
  const CachePlanner planner = planner_with(model({state_of(1000, 30, 0), full(1)}), "bf16");
  EXPECT_EQ(planner.state_bytes(), 1000u * 4 + 30 * 2);
  EXPECT_EQ(planner.bytes({.tokens = 1, .sequences = 7})->state, 7 * planner.state_bytes());
  EXPECT_EQ(planner.bytes({.tokens = 100000, .sequences = 7})->state, 7 * planner.state_bytes());
}

TEST(CachePlanner, LayersThatShareAddNothing) {
  EXPECT_EQ(
      kv_bytes(planner_with(model({full(1), sharing(0), sharing(0)}), "int8"), {.tokens = 1000}),
      kv_bytes(planner_with(model({full(1)}), "int8"), {.tokens = 1000}));
}

TEST(CachePlanner, WholePagesOfASharedPrefixAreHeldOnce) {
  const CachePlanner planner = planner_with(model({full(1)}), "bf16");
  const auto pages = [&](int64_t prefix) {
    return kv_bytes(planner, {.tokens = 640, .sequences = 4, .shared_prefix = prefix}) / kPage;
  };
  EXPECT_EQ(pages(0), 40u);
  EXPECT_EQ(pages(63), 40u);
  EXPECT_EQ(pages(64), 40u - 3);
  EXPECT_EQ(pages(200), 40u - 9);
  EXPECT_EQ(pages(640), 10u);
  EXPECT_EQ(pages(6400), 10u) << "a prefix isn't longer than the sequences";
  EXPECT_EQ(planner.bytes({.tokens = 640, .sequences = 4, .shared_prefix = 200})->ideal,
            (640 + 3 * (640 - 192)) * kPage / 64);
}

// --- What a pool needs ---

std::vector<SequenceSet> sets_with_prefixes() {
  return {{.sequences = 1},
          {.sequences = 3},
          {.sequences = 3, .shared_prefix = 100},
          {.sequences = 3, .shared_prefix = 640},
          {.sequences = 40, .shared_prefix = 1 << 20}};
}

TEST(CachePlanner, WhatIsNeededCoversWhatIsHeldAndNeverFallsAsSequencesGrow) {
  const ModelShape shape = model({sliding(1, 100), sliding(1, 512), full(2), latent(576)});
  for (const char* format : {"bf16", "int8", "int4", "bf16/int4_token"}) {
    for (const int ranks : {1, 3}) {
      for (const int exact_window : {0, 192}) {
        const CachePlanner planner =
            planner_with(shape, format, {.exact_window = exact_window, .context_ranks = ranks});
        for (SequenceSet set : sets_with_prefixes()) {
          uint64_t last = 0;
          for (set.tokens = 1; set.tokens <= 2000; ++set.tokens) {
            const auto bytes = planner.bytes(set);
            ASSERT_TRUE(bytes.ok());
            ASSERT_GE(bytes->needed, bytes->kv() + bytes->state)
                << format << " " << set.tokens << " x " << set.sequences << " prefix "
                << set.shared_prefix << " ranks " << ranks;
            ASSERT_GE(bytes->needed, last)
                << format << " " << set.tokens << " x " << set.sequences << " prefix "
                << set.shared_prefix << " ranks " << ranks << " window " << exact_window;
            last = bytes->needed;
          }
        }
      }
    }
  }
}

TEST(CachePlanner, WhatIsNeededNeverFallsWithMoreSequences) {
  const CachePlanner planner = planner_with(model({sliding(1, 512), full(2)}), "int4");
  for (const int64_t tokens : {1, 64, 500, 5000}) {
    uint64_t last = 0;
    for (int64_t sequences = 1; sequences < 200; ++sequences) {
      const auto bytes =
          planner.bytes({.tokens = tokens, .sequences = sequences, .shared_prefix = 300});
      EXPECT_GE(bytes->needed, last);
      last = bytes->needed;
    }
  }
}

TEST(CachePlanner, CapacitiesAreTheLastThatFit) {
  const CachePlanner planner = planner_with(model({sliding(1, 512), full(2)}), "int4");
  for (const uint64_t room :
       {uint64_t{0}, uint64_t{100'000}, uint64_t{1'000'000}, uint64_t{50'000'000}}) {
    const SequenceSet set{.tokens = 1000, .sequences = 2};
    const auto need = [&](int64_t tokens, int64_t sequences) {
      return planner.bytes({.tokens = tokens, .sequences = sequences})->needed;
    };
    const int64_t most = *planner.max_sequences(set, room);
    EXPECT_TRUE(most == 0 || need(1000, most) <= room);
    EXPECT_GT(need(1000, most + 1), room);
    const int64_t longest = *planner.max_tokens(set, room, 1 << 20);
    EXPECT_TRUE(longest == 0 || need(longest, 2) <= room);
    EXPECT_GT(need(longest + 1, 2), room);
  }
  EXPECT_EQ(*planner.max_tokens({.sequences = 1}, uint64_t{1} << 40, 5000), 5000);
}

TEST(CachePlanner, NumbersBeyondAnyDeviceAreRefused) {
  const CachePlanner planner = planner_with(model({full(8)}), "bf16");
  constexpr int64_t kMost = int64_t{1} << 40;
  EXPECT_EQ(planner.bytes({.tokens = kMost, .sequences = kMost}).status().code(), Code::kExhausted);
  for (const SequenceSet& set : {SequenceSet{.tokens = -1},
                                 {.tokens = kMost + 1},
                                 {.tokens = 1, .sequences = 0},
                                 {.tokens = 1, .sequences = INT64_MAX},
                                 {.tokens = 1, .shared_prefix = -1},
                                 {.tokens = 1, .source_tokens = INT64_MIN}}) {
    EXPECT_EQ(planner.bytes(set).status().code(), Code::kInvalidArgument);
  }
  const ModelShape shape = model({full(8)});
  const auto request = [](int64_t batch, int64_t beams, int64_t tokens) {
    return PlanRequest{.tokens = {tokens}, .batch = batch, .beams = beams};
  };
  EXPECT_THAT(plan_model(shape, request(kMost, kMost, 1)).status().message(),
              HasSubstr("wanted at most 1099511627776 sequences"));
  EXPECT_THAT(plan_model(shape, request(kMost, 1, kMost)).status().message(),
              HasSubstr("tokens: the cache takes more than 2^62 bytes"));
  EXPECT_EQ(sequences_of(shape, request(kMost, kMost, 1), 1, kMost).sequences, INT64_MAX);
}

// --- Devices ---

TEST(ShardModel, HeadsAreSplit) {
  const auto stages = shard_model(model({full(8), sliding(4, 100)}), {.tensor = 4});
  ASSERT_EQ(stages->size(), 1u);
  const ModelShape& shape = stages->front().shape;
  EXPECT_EQ(shape.layers[0].streams[0].heads, 2);
  EXPECT_EQ(shape.layers[1].streams[0].heads, 1);
  EXPECT_EQ(shape.num_query_heads, 2);
  EXPECT_TRUE(shape.notes.empty());
}

TEST(ShardModel, FewerHeadsThanRanksAreReplicatedWithANote) {
  const auto stages = shard_model(model({full(2), latent(576)}), {.tensor = 8});
  const ModelShape& shape = stages->front().shape;
  EXPECT_EQ(shape.layers[0].streams[0].heads, 1);
  EXPECT_EQ(shape.layers[1].streams[0].heads, 1);
  EXPECT_THAT(shape.notes, ElementsAre(HasSubstr("heads are replicated"), HasSubstr("latents")));
}

TEST(ShardModel, HeadsThatDontDivideSayWhichSizesWork) {
  EXPECT_EQ(
      sharding_error(model({full(6)}, 12), {.tensor = 4}),
      "tensor parallelism of 4 doesn't divide the heads of made; sizes that work: 1-3, 6, 12");
  EXPECT_THAT(sharding_error(model({full(8)}), {.tensor = 16}), HasSubstr("work: 1, 2, 4, 8"));
  EXPECT_THAT(sharding_error(model({state_of(60, 0, 6)}), {.tensor = 4}), HasSubstr("work: 1, 2"));
  for (const int ranks : {0, -1, 1 << 20}) {
    EXPECT_THAT(sharding_error(model({full(8)}), {.tensor = ranks}),
                HasSubstr("tensor parallelism: "));
    EXPECT_THAT(sharding_error(model({full(8)}), {.pipeline = ranks}),
                HasSubstr("pipeline parallelism: "));
    EXPECT_THAT(sharding_error(model({full(8)}), {.context = ranks}),
                HasSubstr("context parallelism: "));
  }
}

TEST(ShardModel, StateIsSplitByItsHeadsOrCountedWholeWithANote) {
  const auto split = shard_model(model({state_of(800, 80, 8)}), {.tensor = 4});
  EXPECT_EQ(split->front().shape.layers[0].state.recurrent_elements, 200);
  EXPECT_EQ(split->front().shape.layers[0].state.conv_elements, 20);
  const auto whole = shard_model(model({state_of(800, 80, 0)}), {.tensor = 4});
  EXPECT_EQ(whole->front().shape.layers[0].state.recurrent_elements, 800);
  EXPECT_THAT(whole->front().shape.notes, ElementsAre(HasSubstr("counted whole")));
}

TEST(ShardModel, UnevenLayersGoToTheEarlierStages) {
  const auto stages = shard_model(model(std::vector<ModelLayer>(10, full(1))), {.pipeline = 4});
  std::vector<int> firsts, sizes;
  for (const ModelStage& stage : *stages) {
    firsts.push_back(stage.first_layer);
    sizes.push_back(static_cast<int>(stage.shape.layers.size()));
  }
  EXPECT_THAT(firsts, ElementsAre(0, 3, 6, 8));
  EXPECT_THAT(sizes, ElementsAre(3, 3, 2, 2));
  EXPECT_THAT(sharding_error(model({full(1), full(1)}), {.pipeline = 3}),
              HasSubstr("the model has 2 layers; sizes that work: 1, 2"));
}

TEST(ShardModel, ALayerStaysWithTheOneWhoseCacheItReads) {
  const ModelShape shape = model({full(1), sharing(0), full(1), sharing(2)});
  const auto stages = shard_model(shape, {.pipeline = 2});
  ASSERT_TRUE(stages.ok());
  EXPECT_EQ((*stages)[1].shape.layers[1].shares, 0) << "counted from the stage's first layer";
  EXPECT_THAT(sharding_error(shape, {.pipeline = 4}),
              HasSubstr("a layer would read the cache of another stage's layer; sizes that work: "
                        "1, 2"));
}

TEST(PlanModel, RanksHoldTheirShareAndTogetherAllOfIt) {
  const ModelShape shape = model(std::vector<ModelLayer>(4, full(8)));
  PlanRequest request{.formats = {"int4"}, .tokens = {1024}, .batch = 3};
  const PlanRow whole = plan_model(shape, request)->rows[0];
  for (const Sharding& sharding :
       {Sharding{.tensor = 4}, {.pipeline = 2}, {.tensor = 2, .pipeline = 4}}) {
    request.sharding = sharding;
    const PlanRow row = plan_model(shape, request)->rows[0];
    EXPECT_EQ(row.bytes.kv(), whole.bytes.kv());
    EXPECT_EQ(row.bytes.ideal, whole.bytes.ideal);
    EXPECT_EQ(row.device_bytes * static_cast<uint64_t>(sharding.devices()), whole.device_bytes);
    EXPECT_EQ(row.effective_bits, whole.effective_bits);
  }
  request.sharding = {.tensor = 8, .context = 2};
  EXPECT_GE(plan_model(shape, request)->rows[0].bytes.kv(), whole.bytes.kv());
}

TEST(PlanModel, TheFullestStageDecidesWhatFits) {
  const ModelShape shape = model({full(8), full(8), full(8)});
  PlanRequest request{.tokens = {640}, .sharding = {.pipeline = 2}, .memory = DeviceMemory{}};
  request.memory->total = 2 * 8 * 10 * kPage;  // two layers; bf16 pages need nothing beside them
  EXPECT_TRUE(*plan_model(shape, request)->rows[0].fits);
  --request.memory->total;
  const PlanRow row = plan_model(shape, request)->rows[0];
  EXPECT_FALSE(*row.fits);
  EXPECT_EQ(row.spare_bytes, -1);
  EXPECT_EQ(row.device_needed, row.available_bytes + 1);
  EXPECT_EQ(row.max_context, 640 - 64);
}

TEST(PlanModel, WeightsWorkspaceAndActivationsLeaveTheRest) {
  const ModelShape shape = model({full(1)});
  PlanRequest request{.tokens = {64}, .memory = DeviceMemory{}, .weight_bytes = 1000};
  request.memory = {.total = kPage + 1600, .workspace = 500, .activation = 100};
  EXPECT_EQ(plan_model(shape, request)->rows[0].spare_bytes, 0);
  request.sharding.context = 2;  // context ranks hold all weights
  EXPECT_EQ(plan_model(shape, request)->rows[0].available_bytes, kPage);
  request.sharding = {.tensor = 2};
  EXPECT_EQ(plan_model(shape, request)->rows[0].available_bytes, kPage + 500);
  request.sharding = {};
  request.memory->total = 1000;
  const PlanRow row = plan_model(shape, request)->rows[0];
  EXPECT_EQ(row.available_bytes, 0u);
  EXPECT_EQ(row.spare_bytes, -static_cast<int64_t>(kPage) - 600);
  EXPECT_EQ(row.max_sequences, 0);
  EXPECT_EQ(row.max_context, 0);
  request.weight_bytes = uint64_t{1} << 61;
  EXPECT_THAT(plan_model(shape, request).status().message(),
              HasSubstr("weights: 2305843009213693952 bytes, wanted at most 2^60"));
}

TEST(PlanModel, AWorkloadsFirstFitIsTheBestThatFitsNotTheSmallest) {
  const ModelShape shape = model(std::vector<ModelLayer>(4, full(8)));
  PlanRequest request{.formats = {"int2", "int4", "int8", "bf16"}, .tokens = {64}};
  request.workload = Workload{.prompt = {1000, 4000}, .output = {100, 400}, .concurrency = 4};
  request.memory = DeviceMemory{};
  const auto first_fit = [&](uint64_t memory) {
    request.memory->total = memory;
    return plan_model(shape, request)->first_fit;
  };
  const Plan plan = *plan_model(shape, request);
  ASSERT_EQ(plan.workload.size(), 4u);
  for (const WorkloadRow& row : plan.workload) {
    EXPECT_EQ(row.average.tokens, 1100);
    EXPECT_EQ(row.p95.tokens, 4400);
    EXPECT_EQ(row.p95.sequences, 4);
    EXPECT_EQ(first_fit(row.p95.device_needed), row.p95.format);
  }
  EXPECT_EQ(first_fit(uint64_t{1} << 40), "bf16");
  EXPECT_EQ(first_fit(1), "");
}

TEST(PlanModel, TheExpectedGainIsTheFormulaAndTheExactOneIsCounted) {
  const ModelShape shape = model(std::vector<ModelLayer>(4, full(8)));
  PlanRequest request{.formats = {"bf16", "int8"}, .tokens = {64}, .weight_bytes = 50'000'000};
  request.workload = Workload{.prompt = {1000, 4000}, .output = {100, 400}, .concurrency = 4};
  request.memory = DeviceMemory{.total = 400'000'000};
  const Plan plan = *plan_model(shape, request);
  const WorkloadRow &baseline = plan.workload[0], &int8 = plan.workload[1];
  const double cache = static_cast<double>(baseline.average.device_bytes);
  const double beta = cache / (cache + 50e6);
  const double c = cache / static_cast<double>(int8.average.device_bytes);
  EXPECT_DOUBLE_EQ(int8.expected_gain, 1 / (1 - beta + beta / c));
  EXPECT_DOUBLE_EQ(*int8.exact_gain, static_cast<double>(int8.average.max_sequences) /
                                         static_cast<double>(baseline.average.max_sequences));
  EXPECT_DOUBLE_EQ(baseline.expected_gain, 1);
}

TEST(PlanModel, ASourceOfUnknownLengthIsSaid) {
  ModelShape shape = model({full(1)});
  shape.layers[0].streams[0].kind = StreamKind::kCross;
  EXPECT_THAT(plan_model(shape, {.tokens = {640}})->notes,
              ElementsAre(HasSubstr("as long as the text")));
  EXPECT_TRUE(plan_model(shape, {.tokens = {640}, .source_tokens = 10})->notes.empty());
  shape.source_tokens = 10;
  EXPECT_TRUE(plan_model(shape, {.tokens = {640}})->notes.empty());
}

TEST(PlanModel, LengthsBeyondTheModelAreSaid) {
  ModelShape shape = model({full(1)});
  shape.max_positions = 4096;
  EXPECT_THAT(plan_model(shape, {.tokens = {4096, 8192, 16384}})->notes,
              ElementsAre("8192, 16384 tokens are more than the 4096 that the model is made for"));
}

}  // namespace
}  // namespace kvant
