// When the machine is sampled, and by which process: each for itself, one per host and run for what they share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "record/machine.hpp"
#include "record/nvml.hpp"
#include "session/gpu_thread.hpp"

namespace dft {

// A right to write shared counters, held by one process of a run on this host. It is kept by using it: whoever comes
// after the holder has been silent for a while takes it over. Nothing is locked and no descriptor is kept.
class Lease {
 public:
  // `name`: what is shared, and among whom; `holder`: unique to a session.
  Lease(const std::string& name, const std::string& holder);
  bool take(uint64_t now_ns, uint64_t silence_ns);
  void release();

 private:
  uint64_t key_, holder_;
};

class Counters {
 public:
  struct Options {
    uint64_t interval_ms = 1000;
    std::string run, host, session;
    bool forked = false;
    bool first_on_host = true;  // if there is no memory to share a lease in
  };
  Counters(Options options, uint64_t now_ns);
  ~Counters();
  Counters(const Counters&) = delete;
  Counters& operator=(const Counters&) = delete;

  // How long until the next sample, at least 1.
  uint64_t wait_ms(uint64_t now_ns) const;
  bool due(uint64_t now_ns) const { return now_ns >= next_ns_; }
  // What the counters are now. A process that ends within an interval gets none: the first call only reads, and the
  // second also gives what the first has read.
  struct Sample {
    uint64_t at_ns;
    std::vector<Counter> counters;
  };
  std::vector<Sample> take(uint64_t now_ns, GpuThread& gpus, bool last = false);

 private:
  void begin();
  bool chosen(Lease* lease, uint64_t now_ns) const;
  void read_process(uint64_t now_ns, std::vector<Counter>* out);
  void read_host(uint64_t now_ns, std::vector<Counter>* out, bool last);
  void read_devices(uint64_t now_ns, GpuThread& gpus, std::vector<Counter>* out);
  uint64_t pause_ns(uint64_t cost_ns, uint64_t share) const;
  uint64_t slack_ns() const;

  Options options_;
  Machine machine_;
  Nvml nvml_;
  Lease host_, cgroup_, gpu_;
  bool in_cgroup_ = false, begun_ = false;
  uint64_t next_ns_ = 0, next_host_ns_ = 0, next_device_ns_ = 0;
  std::vector<Sample> first_;
  bool written_ = false;
};

// Whatever of the machine could not be read so far, for the closing record.
void append_missing_counters(std::string* args);

}  // namespace dft
