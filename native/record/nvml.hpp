// NVIDIA's management library, for a process that already uses the driver.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "record/machine.hpp"

namespace dft {

class Nvml {
 public:
  // Whether the driver's library is in this process. Cheap to ask again: it looks only at newly loaded libraries.
  bool driver_loaded();
  // Takes a while, once; false if the library is not there.
  bool load();
  // Utilisation, memory, power, clocks and throttle reasons of every device.
  void sample(std::vector<Counter>* out);

 private:
  struct Device {
    void* handle;
    uint32_t max_sm_mhz, power_limit_mw;
  };

  bool driver_ = false, tried_ = false;
  uint64_t libraries_ = 0;  // loaded when last asked
  std::vector<Device> devices_;
};

// Held while the loader is asked for its libraries: a fork meanwhile would leave the loader's own lock held in the
// child. Not while one is loaded, once in a process: a constructor of the program may fork with the loader's lock held.
std::mutex& driver_mutex();

}  // namespace dft
