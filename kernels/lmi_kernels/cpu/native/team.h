// A thread pool whose threads run a program together. While a program runs, waiting threads spin, because an operation
// takes microseconds. Between programs they spin briefly, then sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "native.h"

namespace lmi {

class Team {
 public:
  using Work = void (*)(void* argument, Worker& worker);

  // Throws std::system_error if the system refuses a thread, std::bad_alloc if it refuses memory.
  explicit Team(int num_threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }
  // Call `work` on every thread, including the caller's, and return when all are done. Not thread-safe.
  void run(Work work, void* argument);
  // Let the caller's thread write the time there while it works: seconds of CLOCK_MONOTONIC.
  void show_alive_at(double* place) { alive_at_ = place; }

 private:
  friend class Worker;
  void run_thread(int index);
  void end();
  bool wait_for_work(uint64_t seen);

  struct alignas(64) CopiedRow {
    float columns[kPanel];
  };
  std::unique_ptr<CopiedRow[]> copies_;  // [threads, kMaxCopied]; untouched memory takes no space
  std::vector<std::thread> threads_;
  Work work_ = nullptr;
  void* argument_ = nullptr;
  double* alive_at_ = nullptr;
  uint64_t shown_alive_ = 0;  // time-stamp counter at the last heartbeat
  alignas(64) std::atomic<uint64_t> calls_{0};
  alignas(64) std::atomic<int> working_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint64_t> phase_{0};
  alignas(64) std::atomic<int64_t> claimed_{0};
  std::atomic<bool> ending_{false};
  std::atomic<int> sleeping_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace lmi
