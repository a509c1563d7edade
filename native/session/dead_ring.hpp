// What a dead process left in its ring file, read into private memory. It is a file like any other and may contain
// anything: only our own user may be able to write to it, and nothing in it is trusted before it is checked.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "record/record.hpp"
#include "write/marker.hpp"

namespace dft {

class DeadRing {
 public:
  DeadRing() = default;
  DeadRing(const DeadRing&) = delete;
  DeadRing& operator=(const DeadRing&) = delete;
  ~DeadRing();

  // Unfinished: nothing but its size, and perhaps whose it is; its process was killed, or is still at it.
  enum class Opened { kYes, kGone, kNotOurs, kNotARing, kOtherVersion, kUnfinished };
  enum class To { kComplete, kLook };  // for peeking, it is opened read-only
  Opened open(const std::string& path, To purpose = To::kComplete);
  // Reads the head of the file again; false if it is no longer what it was.
  bool read_header();

  enum class Life { kDead, kAlive, kUnknown };
  Life life() const;

  // Whether an unfinished one will stay that way.
  bool was_given_up() const;

  // Only one reader completes a trace. Busy while another does; gone when that one has finished.
  enum class Lock { kHeld, kBusy, kGone };
  Lock lock();

  const FileHeader& header() const { return *header_; }
  const std::string& path() const { return path_; }
  uint64_t bytes() const { return size_; }
  std::string trace_path() const;
  bool same_boot() const;

  // The text of the open tail, whole lines of it.
  std::string spool() const;
  std::vector<std::pair<std::string, std::string>> names() const;

  struct Records {
    int64_t tid = 0;
    uint64_t size = 0;           // bytes of records, one after the other
    std::vector<uint64_t> room;  // aligned as records are
    uint8_t* data() { return reinterpret_cast<uint8_t*>(room.data()); }
  };
  uint64_t rings() const { return header_->ring_count.load(); }
  // What is in one thread's ring but not in the trace.
  Records records(uint64_t ring) const;

 private:
  bool is_sound() const;
  std::string read(uint64_t offset, uint64_t size) const;

  int fd_ = -1;
  uint64_t size_ = 0;
  int64_t modified_s_ = 0;
  std::unique_ptr<FileHeader> header_;
  std::string path_;
  std::unique_ptr<Marker> marker_;
};

// Whether the sizes are consistent: the formatter relies on them, and a damaged file may have others.
bool is_sound_record(const Record& r, uint64_t room, size_t names);

// Reads up to `size` bytes; less at the end of the file.
size_t read_fully(int fd, void* out, uint64_t size, uint64_t offset);

}  // namespace dft
