// The trace file of one process: its name, its lock, and writes that either happen wholly or not at all.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dft {

// `run`, `run.pfw` and `run.pfw.gz` all mean run.pfw.gz when compressing, run.pfw otherwise.
std::string with_suffix(const std::string& path, bool compress);
std::string without_suffix(const std::string& path);
std::string absolute_path(const std::string& path);
std::string directory_of(const std::string& path);
bool make_directories(const std::string& directory);

class TraceFile {
 public:
  TraceFile() = default;
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  ~TraceFile() { close(); }
  // Opens `wished`, or `otherwise` when a live process has taken that name. False: see error().
  bool open(const std::string& requested_path, const std::string& fallback_path);
  bool write_at(uint64_t offset, std::string_view bytes);
  // Cuts the file at `size`.
  bool truncate(uint64_t size);
  bool rename_to(const std::string& path);
  void close();
  // The file was removed under us; what is written goes nowhere.
  bool vanished() const;

  bool is_open() const { return fd_ >= 0; }
  const std::string& path() const { return path_; }
  const std::string& error() const { return error_; }

 private:
  bool open_locked(const std::string& path, bool* taken);
  bool reopen_if_stolen();
  int fd_ = -1;
  uint64_t device_ = 0, inode_ = 0;
  std::string path_, error_;
};

}  // namespace dft
