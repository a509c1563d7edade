// Which files the current trace file has already named: each once, and again in every part.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "record/record.hpp"

namespace dft {

class FileNames {
 public:
  // Rotated traces need the names again later; others only need to know that they were written.
  explicit FileNames(bool keep_paths) : keep_paths_(keep_paths) {}
  void new_part();
  // For a record that names a file: has its name already been written?
  bool has(const Record& r) const;
  // The name in this record has been written.
  void note(const Record& r);
  // For a call on a file: its path if the current part lacks the name, empty otherwise.
  std::string_view missing(uint64_t hash);

 private:
  bool insert(uint64_t hash);
  bool contains(uint64_t hash) const;
  void grow();

  bool keep_paths_;
  std::vector<uint64_t> written_;  // open addressing, 0 is empty
  size_t used_ = 0;
  std::unordered_map<uint64_t, std::string> paths_;
};

}  // namespace dft
