// Asks the GPUs for their counters in a thread of the program's descriptor table. NVIDIA's library keeps descriptors
// open and is the same for the program and for us: the writer, whose descriptors are its own, must not call it.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "record/nvml.hpp"

namespace dft {

class GpuThread {
 public:
  // By a thread of the program, when the writer has announced that there is something to ask.
  void start();
  bool running() const { return running_.load(std::memory_order_acquire); }
  void want() { wanted_.store(true, std::memory_order_release); }
  bool wanted() const { return wanted_.load(std::memory_order_acquire); }
  // Does not wait for a driver that hangs.
  void stop();

  struct Answer {
    std::vector<Counter> counters;
    uint64_t cost_ns = 0;
  };
  // By the writer. Waits a moment for an answer; a later one is for the next call.
  bool ask(Answer* out);

 private:
  static void* run(void* self);
  struct Shared;  // outlives this object while the driver hangs
  Shared* shared_ = nullptr;
  pthread_t thread_{};
  std::atomic<bool> running_{false}, wanted_{false};
};

}  // namespace dft
