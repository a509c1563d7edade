// The trace file of one process: its name, and writes that happen completely or not at all.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "record/descriptors.hpp"
#include "write/name_claim.hpp"

namespace dft {

// `run`, `run.pfw` and `run.pfw.gz` all mean run.pfw.gz when compressing, run.pfw otherwise.
std::string with_suffix(const std::string& path, bool compress);
std::string without_suffix(const std::string& path);
// The file of rows of a trace, given its name with or without a suffix.
std::string rows_of(const std::string& path);
std::string absolute_path(const std::string& path);
// The whole path of a trace without its suffix. A trace in a directory that is only named needs a name that readers
// see.
std::string trace_stem(const std::string& path);
std::string directory_of(const std::string& path);
bool make_directories(const std::string& directory);

// A file, whatever its name.
struct FileId {
  uint64_t device = 0, inode = 0;
};
// Removes the file of this name if it is that file.
void remove_if_same(const std::string& path, const FileId& file);

class TraceFile {
 public:
  TraceFile() = default;
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  ~TraceFile() { close(); }
  // Creates the file; false if one of this name exists, or for another reason: see error().
  bool create(const std::string& path);
  // Renames it; if that fails, it keeps its current name.
  Claim claim(const std::string& path, const Claimant& claimant);
  // The same for a file that no other process wants.
  void rename_to(const std::string& path);
  bool write_at(uint64_t offset, std::string_view bytes);
  // Truncates the file to `size`.
  bool truncate(uint64_t size);
  void close();
  // As for a ring file.
  int descriptor() const { return owns_descriptor() ? fd_.get() : -1; }
  void keep_descriptor(int fd) { fd_.set(fd); }
  // The file was removed while in use; writes are lost.
  bool vanished() const;

  FileId id() const { return {device_, inode_}; }
  bool is_open() const { return open_; }
  const std::string& path() const { return path_; }
  const std::string& error() const { return error_; }

 private:
  bool owns_descriptor() const;
  bool reopen_if_missing();
  FileNumbers fd_;
  bool open_ = false;
  uint64_t device_ = 0, inode_ = 0;
  std::string path_, error_;
};

}  // namespace dft
