// One process at a time, also where there are no file locks: a hidden file beside another one, created exclusively.
#pragma once

#include <string>

namespace dft {

class Marker {
 public:
  // `purpose` is how its name ends.
  Marker(const std::string& path, const char* purpose);
  ~Marker();
  Marker(const Marker&) = delete;
  Marker& operator=(const Marker&) = delete;

  bool is_held() const { return !path_.empty(); }
  // Another process has it. One that was killed counts for a minute.
  bool is_taken() const { return taken_; }

 private:
  std::string path_;
  bool taken_ = false;
};

}  // namespace dft
