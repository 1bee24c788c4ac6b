// Speed of the planner, one thread: every published configuration is read and planned in twelve
// formats at five lengths. All of it is meant to take less than a second, so that a page or a
// server may plan while somebody types.
//
//   kvant_plan_bench [--benchmark_filter=all]
//
// In every round bf16 has to hold what its tokens need, and a pool what bf16 holds.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "kvant/plan.h"

namespace kvant {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> config_files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(KVANT_TEST_DATA "/configs")) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".json" && !name.starts_with("expected") &&
        name != "by_hand.json" && name != "variants.json")
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

PlanRequest sweep() {
  PlanRequest request{.skip_refused = true, .tokens = {1024, 4096, 16384, 32768, 131072}};
  request.formats.assign(formats_by_quality().begin(), formats_by_quality().end());
  return request;
}

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "plan_bench: %s\n", message.c_str());
  std::exit(1);
}

template <typename T>
T value_of(Result<T> result) {
  if (!result.ok()) fail(result.status().message());
  return *std::move(result);
}

// The number of rows. A window's ideal has room for the query itself, its pages between two steps
// needn't.
size_t check_plan(const ModelShape& shape, const Plan& plan) {
  for (const PlanRow& row : plan.rows) {
    if (row.format != "bf16") continue;
    const uint64_t held = row.bytes.kv();
    if (held < row.bytes.ideal * 99 / 100 || row.bytes.needed < held)
      fail(shape.source + ": " + std::to_string(held) + " bytes held of " +
           std::to_string(row.bytes.ideal));
  }
  return plan.rows.size();
}

void read_all(benchmark::State& state) {
  const std::vector<fs::path> files = config_files();
  for (auto _ : state) {
    for (const fs::path& file : files) benchmark::DoNotOptimize(value_of(read_model_shape(file)));
  }
}

void plan_all(benchmark::State& state) {
  const std::vector<fs::path> files = config_files();
  const PlanRequest request = sweep();
  size_t rows = 0;
  for (auto _ : state) {
    rows = 0;
    for (const fs::path& file : files) {
      const ModelShape shape = value_of(read_model_shape(file));
      rows += check_plan(shape, value_of(plan_model(shape, request)));
    }
  }
  state.counters["configs"] = static_cast<double>(files.size());
  state.counters["rows"] = static_cast<double>(rows);
}

BENCHMARK(read_all)->Name("plan/read")->Unit(benchmark::kMillisecond);
BENCHMARK(plan_all)->Name("plan/all")->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvant

BENCHMARK_MAIN();
