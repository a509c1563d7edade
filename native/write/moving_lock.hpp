// One mover at a time: judging a file and moving it aside are two steps, and another process could put its own file
// under the name in between.
#pragma once

#include <string>

#include "write/marker.hpp"

namespace dft {

class MovingLock {
 public:
  explicit MovingLock(const std::string& path);
  ~MovingLock();
  MovingLock(const MovingLock&) = delete;
  MovingLock& operator=(const MovingLock&) = delete;

  bool is_held() const { return state_ == kHeld; }
  // Another process is moving the file, or has moved it: look again.
  bool is_in_use() const { return state_ == kInUse; }

 private:
  enum State { kRefused, kInUse, kHeld } state_ = kRefused;
  Marker marker_;
  int fd_ = -1;
};

}  // namespace dft
