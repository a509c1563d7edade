// The memory-mapped file that holds the rings, the open tail of the text and the names, so that whoever
// reads the trace of a killed process finds the events it had not yet written.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "record/record.hpp"

namespace dft {

struct MappedRing {
  RingHeader* header = nullptr;
  uint8_t* data = nullptr;  // mapped twice in a row
  uint64_t capacity = 0;
};

class RingFile {
 public:
  // Makes the file in the first of `directories` that can hold it; falls back to anonymous memory.
  bool create(const std::vector<std::string>& directories, const std::string& name, uint64_t ring_capacity,
              uint64_t spool_capacity);
  // Maps an existing file of a dead process, privately: nothing of it changes on disk.
  bool open_existing(const std::string& path);
  // A ring whose first piece has memory. Neither this nor the next allocates from the heap or locks.
  bool add_ring(MappedRing* out);
  // More memory for a ring, up to `upto` bytes of it; for any thread. False when there is none.
  bool extend(RingHeader* ring, uint64_t upto);
  MappedRing map_ring(uint64_t index);
  void unlink_file();
  // In the child of a fork: the file is the parent's.
  void abandon();
  void unmap_ring(const MappedRing& ring);
  void unmap(const std::vector<MappedRing>& rings);
  ~RingFile();

  FileHeader* header() const { return header_; }
  char* spool() const { return reinterpret_cast<char*>(header_) + header_->spool_offset; }
  const std::string& path() const { return path_; }
  bool recoverable() const { return !path_.empty(); }

 private:
  bool is_sound() const;
  bool create_in_memory(uint64_t first_size);
  bool owns_descriptor() const;
  bool reopen_if_stolen();
  bool create_at(const std::string& path, uint64_t first_size);
  FileHeader* header_ = nullptr;
  uint64_t mapped_ = 0;
  std::atomic<int> fd_{-1};  // rings are extended by their threads
  uint64_t device_ = 0, inode_ = 0;
  bool reading_ = false;
  std::string path_;
};

// Memory of a ring is taken by the piece: the whole at once would hold up the call that needs the ring.
inline constexpr uint64_t kRingPiece = 256 << 10;
inline constexpr const char* kSharedMemory = "/dev/shm";
std::vector<std::string> ring_directories(const std::string& requested, const std::string& trace_directory);
// Start time of a live process in clock ticks; 0 when there is no such process (zombies count as dead).
uint64_t process_start_time(uint32_t pid);
uint64_t own_pid_namespace();

}  // namespace dft
