// A profiler window as plain rows: facts that no single activity has are computed here, and every row gets its args.
// Independent of Python, so that all of it happens without the interpreter lock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace dft::py {

inline constexpr int64_t kAbsent = INT64_MIN;

// Texts by number; equal ones are kept once.
class Texts {
 public:
  uint32_t number(std::string_view text);
  std::string_view operator[](uint32_t i) const { return texts_[i]; }
  size_t size() const { return texts_.size(); }

 private:
  std::deque<std::string> texts_;
  std::unordered_map<std::string_view, uint32_t> numbers_;
};

enum class Class : uint8_t {
  kHost,      // operators, annotations, Python functions
  kInstant,   // memory changes
  kLaunch,    // calls of the device's runtime or driver
  kOnDevice,  // kernels, copies, waits
};

// A category of Kineto.
struct Sort {
  std::string name;
  Class where;
  bool annotation;   // user_annotation
  bool is_operator;  // may launch work
  bool is_work;      // counts as device time; annotations and waits span work that is already counted
};

struct Row {
  int64_t start = 0, duration = 0;
  int64_t tid = 0;  // of a device row: the stream
  int64_t correlation = 0, linked = 0;
  int64_t sequence = -1, record_function = 0, forward_thread = 0;
  // Memory: bytes, total allocated, total reserved, address, on a device. Python: id, parent, module.
  int64_t more[5] = {kAbsent, kAbsent, kAbsent, kAbsent, kAbsent};
  uint32_t name = 0, details = 0;
  int32_t device = -1;
  uint16_t sort = 0;
};

class Table {
 public:
  Texts names;
  std::vector<Row> rows;
  std::unordered_map<int64_t, int64_t> flops;  // by correlation

  explicit Table(size_t count) : rows(count) { details_.number(""); }

  uint16_t sort(std::string_view kind);
  const Sort& sort_of(const Row& row) const { return sorts_[row.sort]; }
  // Takes the numbers of this one call out of Kineto's text; the rest is shared by all rows alike.
  void digest(Row& row, std::string_view text);
  void set_flops(Row& row, int64_t value) { flops[row.correlation] = value; }

  bool has_devices() const { return has_devices_; }
  // Bounds, steps and memory, from rows of which these are known; `start` is the profiler's own, or 0.
  void look_over(int64_t start);
  // Device time of operators: needs every row complete.
  void attribute();
  // Args of a row, valid until the next call.
  std::string_view args(size_t index);
  int64_t lane(const Row& row);
  const std::map<int64_t, std::pair<int64_t, int64_t>>& lanes() const { return lanes_; }

 private:
  struct Step {
    int64_t start, end, number;
  };
  struct Changes {
    std::vector<int64_t> moments, host, device;  // the sums before each moment and after the last
  };
  void add_to_parents(std::vector<uint32_t>& operators);
  void host_args(const Row& row, size_t index);
  void memory_args(const Row& row);
  void launch_args(const Row& row);
  void device_args(const Row& row);
  int64_t add_operator(const Row& row);
  void finish(const Row& row, int64_t moment);
  const std::string& fragment(const Row& row, bool on_device);

  std::vector<Sort> sorts_;
  Texts details_;
  std::vector<std::string> fragments_[2];
  bool has_devices_ = false;
  int64_t window_ns_ = 1;
  std::vector<Step> steps_;
  std::unordered_map<int64_t, Changes> memory_;
  std::unordered_map<int64_t, uint32_t> operators_;  // by correlation
  std::vector<int64_t> device_ns_;
  std::map<int64_t, std::pair<int64_t, int64_t>> lanes_;  // device and stream
  std::string key_, out_;
};

}  // namespace dft::py
