// What the producers put into a ring and the writer (or a later reader of a dead process's ring) takes out.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "record/clock.hpp"

namespace dft {

enum class Kind : uint8_t {
  kSpan = 1,      // name interned; payload: args fragment
  kEvent = 2,     // payload: Strings{name, cat} + args fragment
  kMetadata = 3,  // payload: Strings{kind, key} + value
  kCounter = 4,   // payload: Strings{name, cat} + args fragment
  kIo = 5,        // name interned; payload: IoPayload + its values
};

enum Flag : uint8_t {
  kAbsoluteTime = 1,  // start/end are epoch ns, not ticks
  kOnHeap = 2,        // payload is {pointer, size} of a malloc'ed block: too large for the ring
  kOtherLane = 4,     // the event carries its own tid
};

// The id of a call: nothing refers to it, so whoever takes it out of the ring numbers it. Threads that took their
// numbers from one counter would wait for each other's cache line at every call.
inline constexpr uint64_t kNumberedLater = 0;

// `args` are always a ready JSON fragment: either empty or `,"key":value,...`.
struct Record {
  uint32_t size;  // whole record, multiple of 8
  Kind kind;
  uint8_t flags;
  uint16_t level;
  uint64_t id;
  int64_t parent;
  uint64_t start;
  uint64_t end;
  uint32_t name;
  uint32_t payload_size;

  const char* payload() const { return reinterpret_cast<const char*>(this + 1); }
  char* payload() { return reinterpret_cast<char*>(this + 1); }
};
static_assert(sizeof(Record) == 48);

struct Strings {
  int64_t tid;
  uint32_t first_size;
  uint32_t second_size;
};

// A traced call. Which values it has is known by its number (format/io_calls.hpp).
struct IoPayload {
  uint64_t file;  // hash of the path as in the text, 0 without one
  int64_t ret;
  int32_t error;  // errno, 0 if the call succeeded
  uint16_t call;
  uint8_t values;
  uint8_t has_ret;
};
static_assert(sizeof(IoPayload) == 24);

struct HeapPayload {
  char* data;
  uint64_t size;
};

enum class Drop : int { kRingFull, kDisk, kSizeLimit, kInSignal, kMemory, kCount };
inline constexpr const char* kDropNames[] = {"ring_full", "disk", "size_limit", "in_signal", "memory"};

// Per-thread ring, at the head of its part of the ring file; the data follows one page later.
struct RingHeader {
  alignas(64) std::atomic<uint64_t> head;     // bytes produced
  alignas(64) std::atomic<uint64_t> tail;     // bytes whose text is safely in the trace file
  std::atomic<uint64_t> pending;              // what `tail` becomes once the commit in progress is done
  alignas(64) std::atomic<uint64_t> dropped;  // events the producer had to drop
  std::atomic<int64_t> tid;
  std::atomic<uint64_t> reserved;  // bytes from its start that have memory; all ones if all have
  uint64_t offset;                 // of the data in the file
};
// What is mapped begins at a multiple of it: kernels for this processor may have pages of that size.
#if defined(__aarch64__)
inline constexpr uint64_t kPage = 65536;
#else
inline constexpr uint64_t kPage = 4096;
#endif
static_assert(sizeof(RingHeader) <= kPage);

// The head of the ring file: all a reader needs to complete the trace of a process that died.
struct FileHeader {
  static constexpr char kMagic[9] = "DFTRING3";
  char magic[8];
  uint64_t layout;  // ring_layout() of the build that wrote it
  uint32_t pid;
  uint32_t compress;
  uint64_t pid_start_time;
  uint64_t pid_namespace;
  uint64_t boot;  // of the host: see own_boot()
  uint64_t ring_capacity;
  uint64_t spool_offset, spool_capacity;
  uint64_t names_offset, names_capacity;
  uint64_t rings_offset;

  // The word that decides what a reader may trust: see commit_word().
  std::atomic<uint64_t> commit;
  std::atomic<uint64_t> closed_at;    // the size at which the file, if it is that large, is finished
  std::atomic<uint64_t> closed_from;  // where its closing lines begin
  std::atomic<uint64_t> spool_size;   // text of the open tail, which starts at tail_offset of the file
  std::atomic<uint64_t> tail_offset;
  std::atomic<uint64_t> names_used;
  std::atomic<uint64_t> ring_count;
  alignas(64) std::atomic<uint64_t> next_id;  // shared by all threads: on its own cache line
  alignas(64) std::atomic<uint64_t> events;   // X records in the trace file
  std::atomic<uint64_t> dropped[int(Drop::kCount)];

  uint32_t cpu_ticks;
  uint32_t inc_metadata;
  uint32_t disable_tids;
  std::atomic<uint32_t> refusing;  // the disk rejects writes at the moment
  Anchor first_anchor;
  Anchor last_anchor;
  uint64_t epoch_offset;

  char host_hash[24];
  // Two, so that switching files changes one bit of `commit`.
  char path[2][4096];

  const char* trace_path() const { return path[commit.load(std::memory_order_acquire) >> 63]; }
};

// Rings of a build with different structures cannot be read.
inline constexpr uint64_t ring_layout() {
  // Where the paths begin, not only sizes: an extra field may fit into padding.
  return uint64_t(offsetof(FileHeader, path)) << 48 | uint64_t(sizeof(FileHeader)) << 32 |
         uint64_t(sizeof(RingHeader)) << 16 | sizeof(Record);
}

enum CommitState : uint64_t {
  kIdle = 0,
  kPreparing = 1,   // pending positions may be set, but none of them counts
  kCommitted = 2,   // the pending positions are on disk
  kCompacting = 3,  // the file from tail_offset on is being rewritten from the spool
};

// Which of the two paths, the valid size of that file, and the CommitState.
inline uint64_t commit_word(unsigned file, uint64_t size, CommitState state) {
  return uint64_t(file) << 63 | size << 2 | state;
}
inline uint64_t committed_size(uint64_t commit) { return commit << 1 >> 3; }

inline std::string_view view(const char* p, size_t n) { return {p, n}; }
inline uint32_t round8(size_t n) { return uint32_t((n + 7) & ~size_t(7)); }

}  // namespace dft
