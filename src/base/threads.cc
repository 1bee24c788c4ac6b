#include "base/threads.h"

#include <sched.h>

#include <algorithm>

namespace kvant {
namespace {

thread_local bool inside_item = false;

// A decode step starts some hundred parallel loops, tens of microseconds apart: a worker that slept
// between them would pay a wake-up of about 50 us each time. So it spins for about that long first.
constexpr int kSpins = 20000;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : num_threads_(std::max(1, num_threads)) {
  for (int worker = 1; worker < num_threads_; ++worker) {
    workers_.emplace_back([this, worker] { work(worker); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    ++generation_;
    wake_.store(generation_, std::memory_order_release);
  }
  start_.notify_all();
  for (std::thread& t : workers_) t.join();
}

int ThreadPool::available_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

void ThreadPool::take_items(int worker) {
  inside_item = true;
  for (;;) {
    const size_t item = next_item_.fetch_add(1, std::memory_order_relaxed);
    if (item >= num_items_) break;
    (*fn_)(item, worker);
  }
  inside_item = false;
}

void ThreadPool::run(size_t num_items, const std::function<void(size_t, int)>& fn) {
  if (inside_item || num_threads_ == 1 || num_items <= 1) {
    const bool outer = inside_item;
    inside_item = true;
    for (size_t item = 0; item < num_items; ++item) fn(item, 0);
    inside_item = outer;
    return;
  }
  std::lock_guard caller(caller_);
  {
    std::lock_guard lock(mutex_);
    fn_ = &fn;
    num_items_ = num_items;
    next_item_.store(0, std::memory_order_relaxed);
    open_ = true;
    ++generation_;
    wake_.store(generation_, std::memory_order_release);
  }
  start_.notify_all();
  take_items(0);
  // No item is left: a worker that hasn't woken up by now needs not be waited for (on a busy
  // machine that may take long).
  {
    std::lock_guard lock(mutex_);
    open_ = false;
  }
  for (int spin = 0; spin < kSpins && active_.load(std::memory_order_acquire) != 0; ++spin) relax();
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return active_.load(std::memory_order_acquire) == 0; });
}

void ThreadPool::work(int worker) {
  uint64_t seen = 0;
  for (;;) {
    for (int spin = 0; spin < kSpins && wake_.load(std::memory_order_acquire) == seen; ++spin)
      relax();
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return generation_ != seen; });
      seen = generation_;
      if (stop_) return;
      if (!open_) continue;
      active_.fetch_add(1, std::memory_order_relaxed);
    }
    take_items(worker);
    if (active_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      std::lock_guard lock(mutex_);
      done_.notify_one();
    }
  }
}

}  // namespace kvant
