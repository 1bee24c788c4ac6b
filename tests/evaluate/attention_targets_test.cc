#include "evaluate/attention_targets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace kvant {
namespace {

// A run's report in which every row that the targets look at took as long as `ms` says.
template <typename Ms>
TargetReport report_of(const TargetRun& run, std::vector<int> threads, Ms ms) {
  std::string notes;
  const AttentionRequest request = target_request(run, Isa::kAvx512Vnni, notes);
  TargetReport out{.run = &run, .report = {}};
  for (const int t : threads) {
    out.report.bandwidths.push_back({.threads = t, .bytes_per_second = 1e9});
    const auto add = [&](const std::string& name) {
      out.report.rows.push_back(
          {.name = name, .threads = t, .ms = ms(name, t), .bandwidth_share = 1 / ms(name, t)});
    };
    for (const FormatPair& pair : request.pairs) add(pair.name());
    for (const std::string& peer : request.peers) add("ggml/" + peer);
  }
  return out;
}

const TargetRun& run_named(std::string_view name) {
  return *std::ranges::find(target_runs(), name, &TargetRun::name);
}

std::vector<TargetVerdict> verdicts_of(const TargetReport& report, std::string_view what) {
  std::vector<TargetVerdict> out;
  for (const TargetVerdict& v : judge_targets({&report, 1}, Isa::kAvx512Vnni)) {
    if (v.target->what == what) out.push_back(v);
  }
  return out;
}

TEST(AttentionTargets, EveryTargetNamesWhatCanBeTimed) {
  for (const TargetRun& run : target_runs()) {
    for (const Isa isa : {Isa::kAvx2, Isa::kAvx512Vnni}) {
      std::string notes;
      const AttentionRequest request = target_request(run, isa, notes);
      EXPECT_EQ(notes, "");
      EXPECT_FALSE(request.pairs.empty()) << run.name;
      EXPECT_GE(request.repeats, 9) << run.name;
      for (const std::string& peer : request.peers)
        EXPECT_EQ(std::ranges::count(all_peers(), peer), 1) << peer;
    }
  }
  std::set<std::string_view> names;
  for (const TargetRun& run : target_runs()) EXPECT_TRUE(names.insert(run.name).second) << run.name;
}

TEST(AttentionTargets, ASpeedIsTheSlowestOthersTimeOverTheRows) {
  const TargetReport report =
      report_of(run_named("decode/32x8x128"), {1}, [](const auto& name, int) {
        return name == "ggml/q8_0"        ? 20.0
               : name == "bf16"           ? 4.0
               : name.starts_with("int8") ? 1.0
                                          : 0.5;
      });
  for (const TargetVerdict& v : verdicts_of(report, "int8: times ggml's q8_0")) {
    EXPECT_DOUBLE_EQ(v.measured.value(), 20) << v.format;
    EXPECT_TRUE(v.reached);
  }
  const auto fp8 = verdicts_of(report, "FP8: times BF16");
  ASSERT_EQ(fp8.size(), 2u);
  EXPECT_DOUBLE_EQ(fp8[0].measured.value(), 8);
  // K8V4 takes 0.5 of "int8_channel_z/int4…": its name begins with int8, so it is as slow as int8.
  const auto mixed = verdicts_of(report, "K8V4: times its slower part");
  ASSERT_EQ(mixed.size(), 1u);
  EXPECT_DOUBLE_EQ(mixed[0].measured.value(), 1);
  EXPECT_TRUE(mixed[0].reached);
}

TEST(AttentionTargets, TheSlowestFormatStandsForAll) {
  const TargetReport report = report_of(run_named("decode/9x3x64"), {1}, [](const auto& name, int) {
    return name == "bf16" ? 4.0 : name == "fp8_e5m2" ? 5.0 : 1.0;
  });
  const auto all = verdicts_of(report, "every format: times BF16");
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].format, "fp8_e5m2");
  EXPECT_DOUBLE_EQ(all[0].measured.value(), 0.8);
  EXPECT_FALSE(all[0].reached);
}

TEST(AttentionTargets, ThreadsAreHeldToTheMemoryWhereItIsTheLimit) {
  const auto threads = [](double one, double two) {
    return verdicts_of(report_of(run_named("decode/4x1x256"), {1, 2},
                                 [&](const auto&, int t) { return t == 1 ? one : two; }),
                       "all threads: times one");
  };
  for (const TargetVerdict& v : threads(4, 2)) EXPECT_TRUE(v.reached) << v.format;
  for (const TargetVerdict& v : threads(3, 2)) {
    EXPECT_DOUBLE_EQ(v.measured.value(), 1.5);
    EXPECT_FALSE(v.reached) << v.format;
  }
  for (const TargetVerdict& v : threads(1.4, 1.2)) EXPECT_TRUE(v.reached) << "a share of 0.83";
}

TEST(AttentionTargets, ABatchIsComparedWithOneSequenceOfTheSameProcess) {
  const TargetReport reports[] = {
      report_of(run_named("decode/32x8x128"), {2}, [](const auto&, int) { return 1.0; }),
      report_of(run_named("batch/1x128k"), {2}, [](const auto&, int) { return 1.25; })};
  const auto of_batch = [](std::span<const TargetReport> of) {
    std::vector<TargetVerdict> out = judge_targets(of, Isa::kAvx512Vnni);
    std::erase_if(out, [](const TargetVerdict& v) { return v.run != "batch/1x128k"; });
    return out;
  };
  for (const TargetVerdict& v : of_batch(reports)) {
    EXPECT_DOUBLE_EQ(v.measured.value(), 0.8);
    EXPECT_FALSE(v.reached);
  }
  for (const TargetVerdict& v : of_batch({&reports[1], 1}))
    EXPECT_FALSE(v.measured.has_value()) << "nothing to compare with";
}

TEST(AttentionTargets, WhatIsMissingIsNeitherReachedNorMissed) {
  TargetReport report =
      report_of(run_named("decode/9x3x64"), {1}, [](const auto&, int) { return 1.0; });
  std::erase_if(report.report.rows, [](const AttentionTiming& t) { return t.name == "ggml/q8_0"; });
  for (const TargetVerdict& v : verdicts_of(report, "int8: times ggml's q8_0")) {
    EXPECT_FALSE(v.measured.has_value());
    EXPECT_FALSE(v.reached);
  }
}

TEST(AttentionTargets, Avx2HasTargetsOfItsOwn) {
  const TargetReport report =
      report_of(run_named("decode/9x3x64"), {1}, [](const auto&, int) { return 1.0; });
  std::set<double> of_q8_0;
  for (const TargetVerdict& v : judge_targets({&report, 1}, Isa::kAvx2)) {
    if (v.target->against == "ggml/q8_0") of_q8_0.insert(v.target->wanted);
  }
  EXPECT_EQ(of_q8_0, std::set<double>{8});
}

TEST(AttentionTargets, RunsAreChosenByHowTheyBegin) {
  const std::vector<std::string> decode = {"decode"}, batch = {"batch/8"},
                                 wrong = {"decode", "train"};
  EXPECT_EQ(choose_runs({})->size(), target_runs().size());
  EXPECT_EQ(choose_runs(decode)->size(), 3u);
  const auto with_reference = choose_runs(batch);
  ASSERT_EQ(with_reference->size(), 2u) << "a batch and the sequence that it is compared with";
  EXPECT_EQ((*with_reference)[0]->name, "decode/32x8x128");
  EXPECT_NE(choose_runs(wrong).status().message().find("no run begins with train"),
            std::string::npos);
}

}  // namespace
}  // namespace kvant
