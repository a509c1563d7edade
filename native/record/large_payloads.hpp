// Payloads too large for a ring wait for the writer on the heap. Their total is limited: while a disk is full,
// events with large arguments are dropped and counted, like all others once their ring is full.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "api.hpp"

namespace dft {

struct ThreadState;

inline constexpr uint64_t kMaxWaiting = 64 << 20;
extern DFT_API std::atomic<uint64_t> g_waiting_payloads;  // bytes

// Null, and the event counted as dropped, if there is no room or no memory.
char* take_large_payload(ThreadState* t, size_t size);
DFT_API void release_large_payload(char* data, size_t size);

}  // namespace dft
