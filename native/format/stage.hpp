// What an event means for a training step, for step rows and for reports: its class, and from that its stage, given the
// stage around it. src/dftracer/analyze/stages.py has the names of classes, in this order.
#pragma once

#include <cstdint>
#include <string_view>

#include "format/step_row.hpp"

namespace dft {

// The stages (always that stage), in the order of `kRowStages`, then the classes that depend on what encloses them.
enum class EventClass : uint8_t {
  kFetchWait,
  kRead,
  kPreprocess,
  kCollate,
  kTransfer,
  kForward,
  kBackward,
  kOptimizer,
  kComm,
  kCheckpoint,
  kSync,
  kOwnCode,
  kOther,
  kItem,
  kUpdate,
  kAnyCompute,
  kBlock,
  kContainer,
  kIoRead,
  kIoWrite,
  kProcess,
  kInherit,
  kModelOp,
  kWaitForDevice,
  kWaitForPeers,
  kCopy,
  kLaunch,
  kSkip,
};
inline constexpr size_t kEventClasses = 28;
inline constexpr uint8_t kNoStage = kRowStageCount - 1;  // `unexplained`

// Events that delimit something.
enum class Mark : uint8_t {
  kNone,
  kWait,  // for a batch
  kBody,  // of a loop over batches: what follows the wait
  kItem,  // one sample
  kForward,
  kLearn,   // backward
  kUpdate,  // `compute.step`
  kEvaluate,
  kCompile,
  kDevicePhase,  // the device went through a phase that uses it
  kOptimizer,    // one was made; the event says which rank the process has
  kRestore,      // a checkpoint
};

struct EventKind {
  EventClass cls = EventClass::kSkip;
  Mark mark = Mark::kNone;
  int8_t moves = 0;  // bytes: 1 read, -1 written
};
DFT_API EventKind kind_of_event(std::string_view category, std::string_view name);

// [class * kRowStageCount + stage around it] -> stage
const uint8_t* stage_rules(bool automatic);

}  // namespace dft
