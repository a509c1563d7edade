// The memory-mapped file with the rings, the open tail of the text and the names, so that a reader of a killed
// process's trace finds the events that had not been written yet (session/dead_ring.hpp).
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "record/descriptors.hpp"
#include "record/record.hpp"

namespace dft {

struct MappedRing {
  RingHeader* header = nullptr;
  uint8_t* data = nullptr;  // mapped twice in a row
  uint64_t capacity = 0;
};

class RingFile {
 public:
  // Creates the file in the first of `directories` with enough room; falls back to anonymous memory. Of the spool,
  // only `first_spool` bytes have memory until reserve_rest().
  bool create(const std::vector<std::string>& directories, const std::string& name, uint64_t ring_capacity,
              uint64_t spool_capacity, uint64_t first_spool);
  // For a process that goes on: a short one should not pay for it. Without the memory, less of it is used.
  void reserve_rest();
  // A ring whose first piece has memory. Neither this nor the next allocates from the heap or locks.
  bool add_ring(MappedRing* out);
  // A ring in private memory: if the file cannot grow, its events at least reach the trace.
  bool add_private_ring(MappedRing* out);
  // More memory for a ring, up to `upto` bytes of it; callable from any thread. False if there is none.
  bool extend(RingHeader* ring, uint64_t upto);
  void unlink_file();
  // In the child of a fork: the file is the parent's.
  void abandon();
  // Its descriptor, -1 if it has none: for a thread that takes its own, and then says that it has kept this one.
  int descriptor() const { return owns_descriptor() ? fd_.get() : -1; }
  void keep_descriptor(int fd) { fd_.set(fd); }
  void unmap_ring(const MappedRing& ring);
  void unmap(const std::vector<MappedRing>& rings);
  ~RingFile();

  FileHeader* header() const { return header_; }
  char* spool() const { return reinterpret_cast<char*>(header_) + header_->spool_offset; }
  const std::string& path() const { return path_; }
  bool in_file() const { return !path_.empty(); }
  // Whether all of it outlives the process.
  bool recoverable() const { return !path_.empty() && !private_ring_.load(std::memory_order_relaxed); }

 private:
  bool create_in_memory(uint64_t first_size);
  bool owns_descriptor() const;
  bool reopen_if_missing();
  struct Layout {
    uint64_t names, spool, rings;  // offsets
    uint64_t first_spool;
  };
  bool create_at(const std::string& path, const Layout& layout);
  MappedRing map_ring(uint64_t offset) const;
  FileHeader* header_ = nullptr;
  uint64_t mapped_ = 0;
  FileNumbers fd_;  // rings are extended by their threads
  uint64_t device_ = 0, inode_ = 0;
  std::atomic<bool> private_ring_{false};
  std::string path_;
};

// A ring's memory is allocated in pieces: all of it at once would hold up the call that needs the ring.
inline constexpr uint64_t kRingPiece = 256 << 10;
inline constexpr uint64_t kFirstRingPiece = 64 << 10;

}  // namespace dft
