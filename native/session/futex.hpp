// Sleeping on a word of memory, and waking sleepers.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <ctime>

namespace dft {

inline int futex(std::atomic<uint32_t>* word, int op, uint32_t value, const timespec* timeout) {
  return int(
      syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), op | FUTEX_PRIVATE_FLAG, value, timeout, nullptr, 0));
}

inline void futex_wake(std::atomic<uint32_t>* word, uint32_t sleepers) { futex(word, FUTEX_WAKE, sleepers, nullptr); }

// A timeout of 0 means none.
inline void futex_wait(std::atomic<uint32_t>* word, uint32_t value, uint64_t timeout_ms) {
  timespec t{time_t(timeout_ms / 1000), long(timeout_ms % 1000) * 1000000};
  futex(word, FUTEX_WAIT, value, timeout_ms ? &t : nullptr);
}

}  // namespace dft
