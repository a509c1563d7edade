#include "format/stage.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <initializer_list>
#include <string>

namespace dft {
namespace {

using C = EventClass;

struct KnownCall {
  std::string_view name, role;
};
// The traced calls, and those that other tracers have.
constexpr KnownCall kRoles[] = {
#define IO_CALL(category, event, role, ...) {#event, #role},
#include "format/io_hooks.def"
    {"fscanf", "read"},     {"vfscanf", "read"},    {"getc", "read"},     {"getw", "read"},       {"vfprintf", "write"},
    {"putc", "write"},      {"putw", "write"},      {"aio_read", "read"}, {"aio_write", "write"}, {"xstat", "metadata"},
    {"fxstat", "metadata"}, {"lxstat", "metadata"}, {"clone", "process"}, {"execv", "process"},   {"execvp", "process"},
    {"fexecve", "process"}, {"system", "process"},  {"popen", "process"}, {"pclose", "process"},
};

std::string_view role_named(std::string_view name) {
  for (const KnownCall& call : kRoles)
    if (call.name == name) return call.role;
  return {};
}

std::string_view without(std::string_view text, std::string_view ending) {
  return text.ends_with(ending) ? text.substr(0, text.size() - ending.size()) : text;
}

std::string_view role_of(std::string_view name) {
  while (name.starts_with('_')) name.remove_prefix(1);
  name = without(without(name, "_chk"), "_unlocked");
  std::string_view role = role_named(name);
  if (role.empty()) role = role_named(without(name, "64"));
  if (role.empty())
    if (size_t at = name.find("64v2"); at != name.npos)
      role = role_named(std::string(name.substr(0, at)) + "2" + std::string(name.substr(at + 4)));
  return role.empty() ? "metadata" : role;
}

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(), [&](auto word) { return text.starts_with(word); });
}

bool has_any(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(), [&](auto word) { return text.find(word) != text.npos; });
}

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

C class_of_loader(std::string_view n) {
  if (n.ends_with(".iter")) return C::kFetchWait;
  if (n.ends_with(".block")) return C::kBlock;
  return n.starts_with("fetch") && !n.ends_with(".init") ? C::kFetchWait : C::kInherit;
}

C class_of_data(std::string_view n) {
  if (has_any(n, {"collate"})) return C::kCollate;
  if (n.starts_with("preprocess") || has_any(n, {"augment", "transform", "decode"})) return C::kPreprocess;
  if (n.ends_with(".init")) return C::kInherit;
  if (starts_with_any(n, {"io", "read"}) || has_any(n, {".io"})) return C::kRead;
  // The time of an item beyond its I/O is work on it: only I/O is attributed to storage.
  return starts_with_any(n, {"item", "data", "load"}) ? C::kItem : C::kPreprocess;
}

C class_of_compute(std::string_view n) {
  if (n.starts_with("forward")) return C::kForward;
  if (n.starts_with("backward")) return C::kBackward;
  if (n.starts_with("step")) return C::kUpdate;
  return n.ends_with(".init") ? C::kInherit : C::kAnyCompute;
}

// Of an intercepted call of the CUDA (or HIP) runtime: only those that block the host are recorded.
C class_of_cuda(std::string_view n) {
  if (has_any(n, {"synchronize"})) return C::kWaitForDevice;
  if (has_any(n, {"memcpy"})) return C::kCopy;
  return has_any(n, {"graphlaunch"}) ? C::kLaunch : C::kSkip;
}

C class_of_torch(std::string_view n) {
  if (n.starts_with("profilerstep")) return C::kBlock;
  if (n.starts_with("enumerate(dataloader)")) return C::kFetchWait;
  if (n.starts_with("optimizer.step")) return C::kOptimizer;
  if (has_any(n, {"backward"})) return C::kBackward;
  if (n.ends_with("dataparallel.forward") || n.ends_with("dataparallel::forward")) return C::kForward;
  if (starts_with_any(n, {"nccl", "gloo", "c10d", "mpi:", "record_param_comms"})) return C::kComm;
  if (starts_with_any(n, {"memcpy htod", "memcpy dtoh"})) return C::kTransfer;
  if (starts_with_any(n, {"cuda", "hip"}) && n.ends_with("synchronize")) return C::kWaitForDevice;
  return starts_with_any(n, {"cudamemcpy", "hipmemcpy"}) ? C::kCopy : C::kInherit;
}

bool is_io(std::string_view category) {
  return is_one_of(category, {"posix", "stdio", "mpiio", "mpi-io", "hdf5", "io"});
}

C class_of_io(std::string_view n) {
  std::string_view role = role_of(n);
  if (role == "process") return C::kProcess;
  bool changes =
      starts_with_any(n, {"fsync", "fdatasync", "ftruncate", "truncate", "fflush", "msync", "mkdir", "rmdir", "unlink",
                          "rename", "link", "symlink", "chmod", "chown", "creat", "posix_fallocate"});
  return role == "write" || changes ? C::kIoWrite : C::kIoRead;
}

C class_of(std::string_view category, std::string_view n) {
  if (is_one_of(category, {"dftracer", "device_time", "sample"})) return C::kSkip;
  if (category == "cuda") return class_of_cuda(n);
  if (category == "dataloader") return class_of_loader(n);
  if (category == "data") return class_of_data(n);
  if (category == "device") return C::kTransfer;
  if (category == "compute") return class_of_compute(n);
  if (is_one_of(category, {"comm", "communication"})) return n == "wait" ? C::kWaitForPeers : C::kComm;
  if (category == "checkpoint") return C::kCheckpoint;
  if (is_one_of(category, {"pipeline", "ai_root"})) return C::kContainer;
  if (is_io(category)) return class_of_io(n);
  if (category == "dynamo") return C::kModelOp;
  if (is_one_of(category, {"pp", "kineto"})) return class_of_torch(n);
  return C::kInherit;
}

Mark mark_of(std::string_view category, std::string_view name) {
  if (category == "dataloader")
    return name == "fetch.iter" ? Mark::kWait : name == "fetch.block" ? Mark::kBody : Mark::kNone;
  if (category == "data") return name == "item" ? Mark::kItem : Mark::kNone;
  if (category == "compute" && !name.ends_with(".init")) {
    if (name.starts_with("forward")) return Mark::kForward;
    if (name.starts_with("backward")) return Mark::kLearn;
    if (name.starts_with("step")) return Mark::kUpdate;
  }
  if (category == "pipeline")
    return is_one_of(without(name, ".block"), {"evaluate", "test"}) ? Mark::kEvaluate : Mark::kNone;
  if (category == "dynamo") return is_one_of(name, {"compile", "recompile"}) ? Mark::kCompile : Mark::kNone;
  if (category == "device_time")
    return is_one_of(name, {"transfer", "forward", "backward", "optimizer"}) ? Mark::kDevicePhase : Mark::kNone;
  if (category == "dftracer" && name == "optimizer") return Mark::kOptimizer;
  if (category == "checkpoint" && name == "restart") return Mark::kRestore;
  return Mark::kNone;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = char(c + 'a' - 'A');
  return out;
}

using Rules = std::array<uint8_t, kEventClasses * kRowStageCount>;

Rules make_rules(bool automatic) {
  Rules out;
  auto at = [&](C cls, size_t around) -> uint8_t& { return out[size_t(cls) * kRowStageCount + around]; };
  auto stage = [](C cls) { return uint8_t(cls); };
  for (size_t c = 0; c < kEventClasses; ++c)
    for (size_t s = 0; s < kRowStageCount; ++s) at(C(c), s) = uint8_t(c < kNoStage ? c : s);
  for (size_t s = 0; s < kRowStageCount; ++s) {
    at(C::kBlock, s) = kNoStage;
    at(C::kItem, s) = stage(C::kPreprocess);
    // `compute.step` is the optimizer or, depending on how it is used, the whole step: any compute.
    at(C::kUpdate, s) = stage(C::kOptimizer);
    bool part = s == stage(C::kBackward) || s == stage(C::kOptimizer);
    at(C::kAnyCompute, s) = part ? uint8_t(s) : stage(C::kForward);
  }
  at(C::kInherit, kNoStage) = stage(C::kOther);
  // Only where nobody annotates, writing and waiting for processes are the program's own code: it is named by the line
  // that does it.
  at(C::kIoWrite, kNoStage) = at(C::kProcess, kNoStage) = stage(automatic ? C::kOwnCode : C::kOther);
  // DDP's wait is part of the backward pass; how much of it peers caused is found in analyze/peers.py.
  at(C::kWaitForPeers, kNoStage) = at(C::kWaitForPeers, stage(C::kOther)) = stage(C::kComm);
  at(C::kModelOp, kNoStage) = at(C::kLaunch, kNoStage) = stage(C::kForward);
  // A checkpoint, a transfer or a collective that blocks in the driver stays what it is.
  for (uint8_t around : {kNoStage, stage(C::kOther), stage(C::kForward), stage(C::kBackward), stage(C::kOptimizer)}) {
    at(C::kWaitForDevice, around) = stage(C::kSync);
    at(C::kCopy, around) = stage(C::kTransfer);
  }
  for (uint8_t around : {kNoStage, stage(C::kOther), stage(C::kFetchWait), stage(C::kPreprocess), stage(C::kCollate)})
    at(C::kIoRead, around) = stage(C::kRead);
  return out;
}

}  // namespace

EventKind kind_of_event(std::string_view category, std::string_view name) {
  std::string plain_category = lower(category), plain_name = lower(name);
  EventKind out;
  out.cls = class_of(plain_category, plain_name);
  out.mark = mark_of(category, name);
  if (is_io(plain_category)) {
    std::string_view role = role_of(plain_name);
    out.moves = role == "read" ? 1 : role == "write" ? -1 : 0;
  }
  return out;
}

const uint8_t* stage_rules(bool automatic) {
  static const Rules rules[] = {make_rules(false), make_rules(true)};
  return rules[automatic].data();
}

}  // namespace dft
