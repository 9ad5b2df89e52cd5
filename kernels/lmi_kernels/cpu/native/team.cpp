#include "team.h"

#include <immintrin.h>
#include <sched.h>

#include <chrono>

namespace lmi {
namespace {

constexpr int kSpins = 4000;       // before a waiting thread yields
constexpr int kIdleSpins = 20000;  // before an idle thread sleeps
constexpr uint64_t kAliveCycles = 1 << 24;  // between two heartbeats: some milliseconds

template <class Done>
void spin_until(Done done) {
  for (int spins = 0; !done(); ++spins) {
    _mm_pause();
    if (spins >= kSpins) {
      sched_yield();
      spins = 0;
    }
  }
}

}  // namespace

Team::Team(int num_threads) : copies_(new CopiedRow[num_threads * kMaxCopied]) {
  try {
    for (int index = 1; index < num_threads; ++index) threads_.emplace_back([this, index] { run_thread(index); });
  } catch (...) {
    end();
    throw;
  }
}

Team::~Team() { end(); }

void Team::end() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
    calls_.fetch_add(1);
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void Team::run(Work work, void* argument) {
  claimed_.store(0, std::memory_order_relaxed);
  Worker first(*this, 0);
  if (threads_.empty()) return work(argument, first);
  work_ = work;
  argument_ = argument;
  working_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
  calls_.fetch_add(1);
  if (sleeping_.load()) {
    std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_all();
  }
  work(argument, first);
  spin_until([this] { return working_.load(std::memory_order_acquire) == 0; });
}

void Team::run_thread(int index) {
  for (uint64_t seen = 0; wait_for_work(seen);) {
    seen = calls_.load(std::memory_order_acquire);
    Worker worker(*this, index);
    work_(argument_, worker);
    working_.fetch_sub(1, std::memory_order_release);
  }
}

bool Team::wait_for_work(uint64_t seen) {
  for (int spins = 0; spins < kIdleSpins; ++spins) {
    if (calls_.load(std::memory_order_acquire) != seen) return !ending_;
    _mm_pause();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  sleeping_.fetch_add(1);
  wake_.wait(lock, [this, seen] { return calls_.load() != seen; });
  sleeping_.fetch_sub(1);
  return !ending_;
}

int Worker::count() const { return team_.size(); }

float* Worker::panel_copy() const { return team_.copies_[index_ * kMaxCopied].columns; }

void Worker::show_alive() {
  if (index_ != 0 || !team_.alive_at_) return;
  const uint64_t cycles = __rdtsc();  // on some machines the clock is a system call
  if (cycles - team_.shown_alive_ < kAliveCycles) return;
  team_.shown_alive_ = cycles;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  *static_cast<volatile double*>(team_.alive_at_) = std::chrono::duration<double>(now).count();
}

Range Worker::share(int64_t total) const {
  const int64_t size = total / (2 * count());
  return {size * index_, size * (index_ + 1)};
}

Range Worker::take_share(int64_t total) {
  shared_ = total / (2 * count()) * count();
  return shared_ ? share(total) : claim(total);
}

Range Worker::claim(int64_t total, int64_t min_size) {
  show_alive();
  total_ = total;
  std::atomic<int64_t>& claimed = team_.claimed_;
  const int64_t offset = shared_ - first_, end = total - offset;
  int64_t start = claimed.load(std::memory_order_relaxed), stop;
  do {
    if (start >= end) return {total, total};
    const int64_t share = (end - start) / (2 * count());
    stop = start + (share > min_size ? share : min_size);
    if (stop > end) stop = end;
  } while (!claimed.compare_exchange_weak(start, stop, std::memory_order_relaxed));
  return {start + offset, stop + offset};
}

void Worker::barrier() {
  Team& team = team_;
  first_ = shared_ = 0;
  if (team.threads_.empty()) {
    team.claimed_.store(0, std::memory_order_relaxed);
    return;
  }
  const uint64_t phase = team.phase_.load(std::memory_order_relaxed);
  if (team.arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == team.size()) {
    team.arrived_.store(0, std::memory_order_relaxed);
    team.claimed_.store(0, std::memory_order_relaxed);
    team.phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  spin_until([&team, phase] { return team.phase_.load(std::memory_order_acquire) != phase; });
}

void Worker::meet(Arrivals* const* arrivals, int rank, int num_ranks) {
  barrier();
  if (index_ == 0 && num_ranks > 1) {
    const uint64_t count = arrivals[rank]->count.load(std::memory_order_relaxed) + 1;
    arrivals[rank]->count.store(count, std::memory_order_release);
    for (int other = 0; other < num_ranks; ++other)
      spin_until([&] {
        show_alive();
        return arrivals[other]->count.load(std::memory_order_acquire) >= count;
      });
  }
  barrier();
}

}  // namespace lmi
