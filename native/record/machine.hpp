// What the kernel says about this process, its control group and its host, as the arguments of counter records.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace dft {

struct Counter {
  std::string name;
  std::string args;  // `,"key":value,...`
};

// What could not be read; the trace says so at its end.
enum class Source : int { kProc, kSchedule, kIo, kPressure, kCgroup, kCount };
inline constexpr const char* kSourceNames[] = {"proc", "schedstat", "io", "pressure", "cgroup"};

// The limits of the control group this process is in, and what they did to it. The group of each controller is looked
// up once; of nested groups, the one with the lowest limit counts.
class Cgroup {
 public:
  // `root` is put before every path; empty except in tests.
  explicit Cgroup(std::string root) : root_(std::move(root)) {}
  bool find();
  // Identifies the group: those of two containers differ.
  const std::string& identity() const { return identity_; }
  bool sample(std::vector<Counter>* out) const;

 private:
  struct Group {
    std::string directory;
    bool unified = false;
  };
  Group tightest(const std::string& mount, const std::string& path, bool unified, bool memory) const;
  std::string root_, identity_;
  Group cpu_, memory_;
};

class Machine {
 public:
  explicit Machine(std::string root = "") : root_(std::move(root)), cgroup_(root_) {}

  // CPU time, waiting for a CPU, memory and I/O of this process.
  void sample_process(std::vector<Counter>* out);
  // CPUs, memory, disks, network and pressure of the host.
  void sample_host(std::vector<Counter>* out);
  Cgroup& cgroup() { return cgroup_; }
  // One bit for each Source that was missing when asked for.
  uint32_t missing() const { return missing_; }
  void note_missing(Source s) { missing_ |= 1u << int(s); }

 private:
  uint64_t waited_by_all_threads();

  std::string root_;
  Cgroup cgroup_;
  uint32_t missing_ = 0;
  // Threads end and take their numbers with them: what each has waited so far is added up here.
  std::map<int64_t, uint64_t> waited_by_thread_;
  uint64_t waited_ns_ = 0;
};

// The whole life of this process, for the closing record.
void append_process_facts(std::string* args);

}  // namespace dft
