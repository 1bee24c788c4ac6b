#include "base/threads.h"

#include <gtest/gtest.h>

#include <numeric>

#include "simd/cpu.h"

namespace kvant {
namespace {

TEST(ThreadPool, RunsEveryItemOnceWhateverTheThreads) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (size_t items : {0u, 1u, 2u, 1000u}) {
      std::vector<std::atomic<int>> hits(items);
      for (int round = 0; round < 20; ++round) {
        pool.run(items, [&](size_t item, int worker) {
          ASSERT_LT(worker, threads);
          hits[item].fetch_add(1);
        });
      }
      for (const auto& h : hits) EXPECT_EQ(h.load(), 20);
    }
  }
}

TEST(ThreadPool, ANestedRunStaysOnItsThread) {
  ThreadPool pool(3);
  std::atomic<int> total{0};
  pool.run(8, [&](size_t, int) {
    pool.run(10, [&](size_t, int worker) {
      EXPECT_EQ(worker, 0);
      total.fetch_add(1);
    });
  });
  EXPECT_EQ(total.load(), 80);
}

TEST(ThreadPool, ManyCallersTakeTurns) {
  ThreadPool pool(2);
  std::atomic<int> total{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round)
        pool.run(7, [&](size_t, int) { total.fetch_add(1); });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total.load(), 4 * 50 * 7);
}

TEST(Cpu, TheActiveIsaIsSupported) {
  EXPECT_TRUE(isa_supported(active_isa()));
  EXPECT_EQ(supported_isas().front(), Isa::kScalar);
}

}  // namespace
}  // namespace kvant
