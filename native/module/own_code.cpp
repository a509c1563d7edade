#include "module/own_code.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "format/json.hpp"
#include "module/hang_watch.hpp"
#include "module/stack_reader.hpp"
#include "record/engine.hpp"
#include "session/quiet_thread.hpp"
#include "session/session.hpp"

namespace dft::py {
namespace {

constexpr size_t kDeepest = 64;
// At most a hundred times a second, and less often if looking would take more than a thousandth of the time. The pauses
// differ, so that loops of about their length are not met at the same place each time.
constexpr int64_t kPause = 10'000'000, kJitter = 4'000'000, kLongestPause = 500'000'000;
constexpr int64_t kShare = 1000;

PausableThread g_sampler;
std::atomic<const std::vector<std::string>*> g_prefixes{nullptr};
std::atomic<uint64_t> g_samples{0};

void append_frame(std::string& out, const StackFrame& f) {
  size_t slash = f.file.rfind('/');
  out.append(f.function).append(" ").append(slash == f.file.npos ? f.file : f.file.substr(slash + 1)).append(":");
  append_int(out, f.line);
}

// Callbacks at the interpreter's exit are called by no code of the program.
bool is_of_program(const std::vector<StackFrame>& frames) {
  const StackFrame& outermost = frames.back();
  if (frames.size() == kDeepest || outermost.function == "<module>" || outermost.function.ends_with("_bootstrap") ||
      outermost.file.starts_with("<frozen "))
    return true;
  return std::any_of(frames.begin(), frames.end(), [](const StackFrame& f) { return is_user_code(f.file); });
}

void write_sample(const Shown& shown, const std::vector<StackFrame>& frames, int64_t start, int64_t end, int64_t step,
                  int64_t epoch) {
  ThreadState* t = current_thread();
  if (!t) return;
  const StackFrame* innermost = &frames[0];
  for (const StackFrame& f : frames) {
    if (!is_user_code(f.file)) continue;
    innermost = &f;
    break;
  }
  std::string where, stack;
  append_frame(where, *innermost);
  for (size_t i = frames.size(); i-- > 0;) {
    append_frame(stack, frames[i]);
    if (i) stack += ';';
  }
  std::string args = ",\"where\":";
  append_json_string(args, where);
  args += ",\"stack\":";
  append_json_string(args, stack);
  if (step >= 0) append_int(args += ",\"step\":", step);
  if (epoch >= 0) append_int(args += ",\"epoch\":", epoch);
  args += ",\"auto\":1";
  Frame f{};
  f.parent = -1;
  f.level = 1;
  f.id = new_id(t);
  f.start = uint64_t(start);
  emit_strings(t, Kind::kEvent, uint8_t(kAbsoluteTime | kOtherLane), f, uint64_t(end), shown.tid.load(), "own_code",
               "sample", args);
  g_samples.fetch_add(1, std::memory_order_relaxed);
}

int64_t processor_time() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

void* sample(void*) {
  StackReader reader;
  uint32_t seed = uint32_t(getpid());
  int64_t before = int64_t(now_epoch_ns()), used = processor_time(), cost = 0;
  for (;;) {
    seed = seed * 1664525 + 1013904223;
    int64_t spare = std::min(std::max(kPause, cost * kShare), kLongestPause);
    if (!g_sampler.sleep(spare + int64_t(seed >> 8) % kJitter)) return nullptr;
    int64_t now = int64_t(now_epoch_ns());
    int64_t stretch = std::min(now - before, 2 * kLongestPause);
    before = now;
    int64_t used_now = processor_time();
    cost = (3 * cost + (used_now - used)) / 4;  // of a round, smoothed
    used = used_now;
    for (Shown& each : g_shown) {
      int64_t since = each.now.own_since.load(std::memory_order_acquire);
      PyThreadState* thread = each.thread.load(std::memory_order_acquire);
      if (!since || !thread) continue;
      int64_t step = each.now.step.load(std::memory_order_relaxed),
              epoch = each.now.epoch.load(std::memory_order_relaxed);
      try {
        const auto& frames = reader.read(thread, kDeepest);
        bool still = each.now.own_since.load(std::memory_order_acquire) == since;
        if (!frames.empty() && still && is_of_program(frames))
          write_sample(each, frames, now - stretch, now, step, epoch);
      } catch (const std::bad_alloc&) {
        count_lost(Drop::kMemory);
      }
    }
  }
}

void begin_sampling() { g_sampler.start(sample); }

// sample_own_code(prefixes): files below these are not the program's own.
PyObject* sample_own_code(PyObject*, PyObject* prefixes) {
  if (!PyTuple_Check(prefixes)) {
    PyErr_SetString(PyExc_TypeError, "prefixes are a tuple");
    return nullptr;
  }
  auto* all = new std::vector<std::string>;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(prefixes); ++i) {
    const char* text = PyUnicode_AsUTF8(PyTuple_GET_ITEM(prefixes, i));
    if (!text) {
      delete all;
      return nullptr;
    }
    all->push_back(text);
  }
  g_prefixes.store(all, std::memory_order_release);  // the one before may be in use, and is small
  Py_RETURN_NONE;
}

PyObject* own_code_samples(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(g_samples.load()); }

// pause_threads(), resume_threads(): Python warns of a fork in a process with threads since 3.12, and would also
// count ours.
PyObject* pause_threads(PyObject*, PyObject*) {
  g_sampler.pause();
  pause_hang_watch();
  Py_RETURN_NONE;
}

int resume_now(void*) {
  g_sampler.resume();
  resume_hang_watch();
  return 0;
}

// Python 3.13 counts threads after it has called this: ours start again between this and the next operation of the
// program. A program that forks in another thread has threads anyway.
PyObject* resume_threads(PyObject*, PyObject*) {
  bool main = syscall(SYS_gettid) == getpid();
  if (!main || Py_AddPendingCall(resume_now, nullptr) != 0) resume_now(nullptr);
  Py_RETURN_NONE;
}

PyMethodDef g_own_code_functions[] = {
    {"pause_threads", pause_threads, METH_NOARGS, nullptr},
    {"resume_threads", resume_threads, METH_NOARGS, nullptr},
    {"sample_own_code", sample_own_code, METH_O, nullptr},
    {"own_code_samples", own_code_samples, METH_NOARGS, nullptr},
    {},
};

}  // namespace

Shown g_shown[kShownThreads];

bool is_user_code(std::string_view file) {
  if (file.starts_with("<frozen ") || file.find("/site-packages/") != file.npos ||
      file.find("/dist-packages/") != file.npos)
    return false;
  if (const auto* prefixes = g_prefixes.load(std::memory_order_acquire))
    for (const std::string& each : *prefixes)
      if (file.starts_with(each)) return false;
  return true;
}

Shown* show_thread(PyThreadState* thread) {
  for (Shown& each : g_shown) {
    bool taken = false;
    if (!each.taken.compare_exchange_strong(taken, true)) continue;
    each.now.own_since = each.now.moved = each.now.longest = each.now.steps = 0;
    each.now.doing = Doing::kNothing;
    each.now.trains = each.now.stepped = false;
    each.tid = int64_t(syscall(SYS_gettid));
    each.thread = thread;
    if (g_prefixes.load(std::memory_order_relaxed)) begin_sampling();
    return &each;
  }
  return nullptr;
}

void hide_thread(Shown* shown) {
  if (!shown) return;
  shown->now.own_since = 0;
  shown->thread = nullptr;
  shown->taken = false;
}

void hide_all_threads() {
  for (Shown& each : g_shown) hide_thread(&each);
}

bool init_own_code(PyObject* module) { return PyModule_AddFunctions(module, g_own_code_functions) == 0; }

}  // namespace dft::py
