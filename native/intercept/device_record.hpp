// From a call of the CUDA runtime or NCCL to a record in the ring. Nothing of CUDA is called here: it would be called
// from inside whatever the program is doing, a graph capture for example.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "intercept/io_record.hpp"
#include "intercept/patcher.hpp"

namespace dft {

// A process may hold several copies of these libraries (a wheel's beside the system's), and each caller must reach its
// own. So every wrapper exists once per copy.
inline constexpr int kCopies = 4;

enum DeviceSymbol : int {
#define DEVICE_HOOK(symbol, event, wrapper) D_##symbol,
#define COMM_HOOK DEVICE_HOOK
#include "intercept/device_hooks.def"
  kDeviceSymbols
};

extern void* g_device_real[kDeviceSymbols][kCopies];

// How long a call must take to be a record; shorter ones are only counted.
enum class Limit : int { kAlways, kBlocking, kStall, kCount };
extern std::atomic<uint64_t>
    g_device_limits[int(Limit::kCount)];  // in ticks; 0 as long as the rate of the clock is not known

// What a record says of its call, as far as the call has it.
struct DeviceFacts {
  int64_t bytes = -1;
  int kind = -1;                 // cudaMemcpyKind
  const void* stream = nullptr;  // of the call, or
  bool has_stream = false;
  const void* graph = nullptr;  // that is launched
  const void* comm = nullptr;
  int peer = -1;            // of a message
  bool sends = false;       // which way it goes
  bool collective = false;  // all ranks of the communicator make this call
};

inline DeviceFacts on_stream(const void* stream, int64_t bytes = -1, int kind = -1) {
  DeviceFacts facts;
  facts.bytes = bytes;
  facts.kind = kind;
  facts.stream = stream;
  facts.has_stream = true;
  return facts;
}

inline DeviceFacts of_bytes(int64_t bytes, int kind = -1) {
  DeviceFacts facts;
  facts.bytes = bytes;
  facts.kind = kind;
  return facts;
}

// Of the calls that were too short for a record. The first thread that counts on a line owns it, and counts without
// locked instructions, which would take as long as all the rest; others that meet it there use its second pair.
struct alignas(64) ShortCalls {
  std::atomic<const void*> owner{nullptr};  // by an address of its own; a later thread at the same address inherits it
  std::atomic<uint64_t> calls{0}, ticks{0};
  std::atomic<uint64_t> shared_calls{0}, shared_ticks{0};
};
inline constexpr int kShortLines = 64;
extern ShortCalls g_short_calls[kShortLines];
void count_on_a_shared_line(ShortCalls& line, uint64_t ticks);

inline void count_short_call(uint64_t ticks) {
  // The blocks of two threads' variables are megabytes apart.
  const void* me = &tls_io_off;
  ShortCalls& line = g_short_calls[reinterpret_cast<uintptr_t>(me) * 0x9e3779b97f4a7c15u >> 58];
  if (DFT_UNLIKELY(line.owner.load(std::memory_order_relaxed) != me)) {
    count_on_a_shared_line(line, ticks);
    return;
  }
  constexpr auto kPlain = std::memory_order_relaxed;
  line.calls.store(line.calls.load(kPlain) + 1, kPlain);
  line.ticks.store(line.ticks.load(kPlain) + ticks, kPlain);
}

static_assert(kShortLines == 1 << (64 - 58), "as many as the bits that choose one");

void record_device_call(DeviceSymbol symbol, Limit limit, uint64_t start, uint64_t end, int ret,
                        const DeviceFacts& facts);

// Set before the slot that led here; a processor with weak ordering may see the slot first.
inline void* device_original(int symbol, int copy) {
  void** at = &g_device_real[symbol][copy];
  void* found = __atomic_load_n(at, __ATOMIC_RELAXED);
  if (DFT_LIKELY(found != nullptr)) return found;
  std::atomic_thread_fence(std::memory_order_acquire);
  return __atomic_load_n(at, __ATOMIC_RELAXED);
}

template <int S, int K, typename... A>
inline int timed(Limit limit, const DeviceFacts& facts, A... args) {
  auto* function = reinterpret_cast<int (*)(A...)>(device_original(S, K));
  if (!io_active()) return function(args...);
  uint64_t start = ticks();
  int ret = function(args...);
  uint64_t end = ticks();
  if (DFT_LIKELY(end - start < g_device_limits[int(limit)].load(std::memory_order_relaxed))) {
    count_short_call(end - start);
  } else {
    record_device_call(DeviceSymbol(S), limit, start, end, ret, facts);
  }
  return ret;
}

static_assert(kCopies == 4, "ADD_COPIES lists them");
#define ADD_COPIES(symbol, event, wrapper)                                                                   \
  out->push_back({#symbol, reinterpret_cast<void*>(wrapper<D_##symbol, 0>), &g_device_real[D_##symbol][0]}); \
  out->push_back({#symbol, reinterpret_cast<void*>(wrapper<D_##symbol, 1>), &g_device_real[D_##symbol][1]}); \
  out->push_back({#symbol, reinterpret_cast<void*>(wrapper<D_##symbol, 2>), &g_device_real[D_##symbol][2]}); \
  out->push_back({#symbol, reinterpret_cast<void*>(wrapper<D_##symbol, 3>), &g_device_real[D_##symbol][3]});

void add_device_hooks(std::vector<Hook>* out);
void add_comm_hooks(std::vector<Hook>* out);

// Before the first call is replaced.
void prepare_device_records();
// Not the libraries themselves: what they call of their own is part of a call already recorded.
bool calls_device(std::string_view path);
// For the closing record.
void append_short_calls(std::string* args);

// comm_hooks.cpp: the communicator of a call, by which its peers know it too, and its place in the order of calls.
char* put_communicator(char* p, const DeviceFacts& facts);

}  // namespace dft
