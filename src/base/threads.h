// The one thread pool of a process: everything parallel in Kvant is a loop over independent items
// on it.
//
// Determinism rule: work is cut into items by the problem's shape, never by the number of threads,
// and no item reads what another writes. Then results don't depend on the thread count. The pool
// refuses nesting: run() inside an item executes on the calling thread alone.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace kvant {

class ThreadPool {
 public:
  // `num_threads` counts the calling thread; at least 1.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls fn(item, worker) for every item of [0, num_items), worker in [0, num_threads()); returns
  // when all are done. Items are handed out one by one, in order. One caller at a time; others
  // wait. `fn` must not throw.
  void run(size_t num_items, const std::function<void(size_t item, int worker)>& fn);

  // The number of processors this process may use (its affinity mask), at least 1.
  static int available_cpus();

 private:
  void work(int worker);
  void take_items(int worker);

  const int num_threads_;
  std::mutex caller_;  // held by the one run() in progress
  std::mutex mutex_;   // guards generation_, stop_ and the two condition variables' predicates
  std::condition_variable start_;
  std::condition_variable done_;
  uint64_t generation_ = 0;
  bool stop_ = false;
  bool open_ = false;  // a worker may still join the loop of generation_; guarded by mutex_
  const std::function<void(size_t, int)>* fn_ = nullptr;
  size_t num_items_ = 0;
  std::atomic<size_t> next_item_{0};
  std::atomic<uint64_t> wake_{0};  // generation_ for workers that are still spinning
  std::atomic<int> active_{0};     // workers that joined and haven't finished
  std::vector<std::thread> workers_;
};

}  // namespace kvant
