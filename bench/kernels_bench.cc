// Speed of the page kernels, one thread: bytes of codes per second and their share of the read
// bandwidth that the same run measured first. Every case is compared with the scalar kernel, bit
// for bit, before it is timed.
//
//   kvant_kernels_bench --benchmark_filter='key/int8.*/avx2/d128/q4'
//
// A case walks over pages that together exceed the last-level cache (name ends in q4), or over one
// page that stays in the first-level cache (ends in q4/hot). Names are
// <side>/<format>/<kernels>/d<dim>/q<queries per KV head>.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "evaluate/bandwidth.h"
#include "page_case.h"

namespace kvant {
namespace {

constexpr size_t kPoolBytes = size_t{192} << 20;

constexpr PageDesc kDescs[] = {
    {true, "int8_token", PageKind::kInt, 8},
    {true, "int8_channel", PageKind::kInt, 8, ScaleLayout::kChannel},
    {true, "int8_g32", PageKind::kInt, 8, ScaleLayout::kToken, 32},
    {true, "int4_token_z", PageKind::kInt, 4, ScaleLayout::kToken, 0, true},
    {true, "int4_channel_z", PageKind::kInt, 4, ScaleLayout::kChannel, 0, true},
    {true, "int3_channel_z", PageKind::kInt, 3, ScaleLayout::kChannel, 0, true},
    {true, "int2_channel_z", PageKind::kInt, 2, ScaleLayout::kChannel, 0, true},
    {true, "f32", PageKind::kFloat},
    {true, "bf16", PageKind::kFloat, 16, ScaleLayout::kPage, 0, false, FloatType::kBf16},
    {true, "f16", PageKind::kFloat, 16, ScaleLayout::kPage, 0, false, FloatType::kF16},
    {true, "fp8_e4m3", PageKind::kFloat, 8, ScaleLayout::kPage, 0, false, FloatType::kE4m3},
    {true, "nvfp4", PageKind::kInt, 4, ScaleLayout::kToken, 16, false, FloatType::kF32, true},
    {true, "mxfp8_e4m3", PageKind::kFloat, 8, ScaleLayout::kToken, 32, false, FloatType::kE4m3,
     true},
    {false, "int8_token", PageKind::kInt, 8},
    {false, "int8_g32", PageKind::kInt, 8, ScaleLayout::kToken, 32},
    {false, "int4_token_z", PageKind::kInt, 4, ScaleLayout::kToken, 0, true},
    {false, "int4_g32_z", PageKind::kInt, 4, ScaleLayout::kToken, 32, true},
    {false, "int3_token_z", PageKind::kInt, 3, ScaleLayout::kToken, 0, true},
    {false, "int2_token_z", PageKind::kInt, 2, ScaleLayout::kToken, 0, true},
    {false, "f32", PageKind::kFloat},
    {false, "bf16", PageKind::kFloat, 16, ScaleLayout::kPage, 0, false, FloatType::kBf16},
    {false, "f16", PageKind::kFloat, 16, ScaleLayout::kPage, 0, false, FloatType::kF16},
    {false, "fp8_e4m3", PageKind::kFloat, 8, ScaleLayout::kPage, 0, false, FloatType::kE4m3},
    {false, "nvfp4", PageKind::kInt, 4, ScaleLayout::kToken, 16, false, FloatType::kF32, true},
    {false, "mxfp8_e4m3", PageKind::kFloat, 8, ScaleLayout::kToken, 32, false, FloatType::kE4m3,
     true},
};

const AlignedArray<uint8_t>& pool() {
  static const AlignedArray<uint8_t> bytes = random_pages(kPoolBytes);
  return bytes;
}

// Bytes per second that one thread reads: the best of five passes.
double read_bandwidth() {
  static const double best = [] {
    ThreadPool one(1);
    BandwidthMeter meter(one, kPoolBytes);
    double most = 0;
    for (int pass = 0; pass < 5; ++pass) most = std::max(most, meter.measure());
    return most;
  }();
  return best;
}

void time_case(benchmark::State& state, const PageKernels& table, const PageDesc& desc, int dim,
               int queries, bool hot) {
  if (!agrees_with_scalar(table, desc, dim, queries, pool().data())) {
    state.SkipWithError("differs from the scalar kernel");
    return;
  }
  PageCase c(table, desc, dim, queries);
  const size_t bytes = c.page_bytes();
  const size_t num_pages = hot ? 1 : kPoolBytes / bytes;
  size_t page = 0;
  for (auto _ : state) {
    // 64 pages at a time, as a sequence of 4,096 tokens; sums start anew, so that they stay finite.
    std::fill(c.out().begin(), c.out().end(), 0.0f);
    for (int i = 0; i < 64; ++i, page = page + 1 == num_pages ? 0 : page + 1)
      c.run(pool().data() + page * bytes);
    benchmark::DoNotOptimize(c.out().data());
  }
  const double total = 64.0 * static_cast<double>(state.iterations()) * static_cast<double>(bytes);
  state.SetBytesProcessed(static_cast<int64_t>(total));
  state.counters["tokens/s"] =
      benchmark::Counter(64.0 * kTokens, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["of_bandwidth"] =
      benchmark::Counter(total / read_bandwidth(), benchmark::Counter::kIsRate);
}

void register_all() {
  for (const PageKernels* table : runnable_page_kernels()) {
    for (const PageDesc& desc : kDescs) {
      for (int dim : {64, 128, 256}) {
        for (int queries : {1, 4, 64}) {
          for (bool hot : {false, true}) {
            const std::string name = case_name(*table, desc, dim, queries) + (hot ? "/hot" : "");
            benchmark::RegisterBenchmark(name.c_str(), [=, &desc](benchmark::State& state) {
              time_case(state, *table, desc, dim, queries, hot);
            });
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvant

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  std::printf("%s\nread bandwidth, one thread: %.2f GB/s\n", kvant::cpu_description().c_str(),
              kvant::read_bandwidth() * 1e-9);
  kvant::register_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
