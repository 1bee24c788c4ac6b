#include "evaluate/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "simd/clones.h"

namespace kvant {
namespace {

// Wide loads in chains of their own: the memory should be what limits it, not the additions.
KVANT_CLONES uint64_t sum_of(const uint64_t* p, size_t n) {
  constexpr size_t kChains = 32;
  uint64_t sums[kChains] = {};
  for (size_t i = 0; i < n; i += kChains) {
    for (size_t lane = 0; lane < kChains; ++lane) sums[lane] += p[i + lane];
  }
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum += s;
  return sum;
}

constexpr size_t kItem =
    1u << 17;  // words of one work item: 1 MiB, so that threads share the end evenly

}  // namespace

BandwidthMeter::BandwidthMeter(ThreadPool& threads, uint64_t bytes)
    : threads_(threads), data_(round_up(bytes / sizeof(uint64_t), kItem)) {
  threads_.run(data_.size() / kItem, [this](size_t item, int) {
    std::fill_n(data_.data() + item * kItem, kItem, item + 1);
  });
}

double BandwidthMeter::measure() {
  std::atomic<uint64_t> total{0};
  const auto begin = std::chrono::steady_clock::now();
  threads_.run(data_.size() / kItem, [&](size_t item, int) {
    total.fetch_add(sum_of(data_.data() + item * kItem, kItem), std::memory_order_relaxed);
  });
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  sink_ += total.load();
  return static_cast<double>(data_.size() * sizeof(uint64_t)) / seconds;
}

}  // namespace kvant
