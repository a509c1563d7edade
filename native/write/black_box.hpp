// A trace of bounded size: detail is overwritten in a ring of files, except around anomalies. This decides what an
// anomaly is.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "api.hpp"
#include "format/step_row.hpp"

namespace dft {

// Whether steps have become slower. Nothing is assumed about their times, which may well alternate: the latest ones are
// compared with those before them by rank. A single step counts if it is far longer than all before it.
class DFT_API StepWatch {
 public:
  // True if this step shows a change; what came before is then forgotten.
  bool add(int64_t wall_us);

 private:
  static constexpr size_t kKept = 256;
  bool slower_than_before(size_t recent) const;
  int64_t at(size_t back) const { return steps_[(count_ - 1 - back) % kKept]; }

  std::array<int64_t, kKept> steps_{};
  uint64_t count_ = 0;
};

// Steps that somebody asked for (`dftracer trigger`).
struct Trigger {
  uint64_t id = 0;
  int64_t first = 0, steps = 0;

  static constexpr const char* kName = "dftracer.trigger";
};

class BlackBox {
 public:
  // A step is over. Returns why the detail around it must be kept, or null.
  const char* see(const StepRow& row);
  // Looks for a trigger in the trace's folder, once a second. Returns why the detail of now must be kept, or null.
  const char* look(const std::string& folder, uint64_t now_ns);
  // The number of the latest step.
  int64_t last_step() const { return last_step_; }

 private:
  bool read_trigger(const std::string& path);

  StepWatch watch_;
  Trigger trigger_;
  bool pending_ = false;  // the trigger's steps are not over
  bool learns_ = false;   // steps that train have been seen: others are not compared with them
  int64_t steps_ = 0, last_step_ = -1;
  uint64_t looked_ns_ = 0;
  int64_t changed_ns_ = 0;  // of the trigger's file
};

// From any thread: the detail of now is kept, for a reason that is a literal.
DFT_API void ask_to_keep(const char* reason);
// What was asked for since the last call, or null.
const char* asked_to_keep();

}  // namespace dft
