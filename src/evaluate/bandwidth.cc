#include "evaluate/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>

namespace kvant {
namespace {

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
    const uint64_t* p = data_.data() + item * kItem;
    uint64_t sums[8] = {};  // eight chains, so that the adds never wait for one another
    for (size_t i = 0; i < kItem; i += 8) {
      for (size_t lane = 0; lane < 8; ++lane) sums[lane] += p[i + lane];
    }
    uint64_t sum = 0;
    for (uint64_t s : sums) sum += s;
    total.fetch_add(sum, std::memory_order_relaxed);
  });
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  sink_ += total.load();
  return static_cast<double>(data_.size() * sizeof(uint64_t)) / seconds;
}

}  // namespace kvant
