#include "module/hang_watch.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>

#include "format/arguments.hpp"
#include "format/json.hpp"
#include "format/stage.hpp"
#include "intercept/collectives.hpp"
#include "intercept/intercept.hpp"
#include "module/node_use.hpp"
#include "module/own_code.hpp"
#include "module/process_stacks.hpp"
#include "module/stack_reader.hpp"
#include "record/descriptors.hpp"
#include "record/names.hpp"
#include "record/progress.hpp"
#include "record/quiet_writes.hpp"
#include "session/quiet_thread.hpp"
#include "session/session.hpp"
#include "write/black_box.hpp"

namespace dft::py {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kPatient = 3, kUsual = 10;
constexpr int64_t kFirstSteps = 3;
constexpr size_t kPauses = 32, kFewPauses = 5;
constexpr int64_t kIdleShare = 50;  // blocked: it has used less than this part of the time

std::atomic<int64_t> g_patience{0};  // ns; 0: nothing is watched
PausableThread g_watch;
std::atomic<int64_t> g_rank{-1};
std::atomic<bool> g_in_group{false};         // it has taken part in a process group
std::atomic<bool> g_stop_describing{false};  // the interpreter is about to end
Relaxed<PyObject*> g_describe = nullptr;     // asks torch what it knows; needs the interpreter lock

int64_t clock_now() { return int64_t(now_epoch_ns()); }

int64_t processor_time() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return int64_t(t.tv_sec) * kSecond + t.tv_nsec;
}

bool start_thread(void* (*run)(void*), void* with, size_t stack) {
  return start_quiet_thread(run, with, Joined::kNever, nullptr, stack) == 0;
}

// Asking torch --------------------------------------------------------------------------------------------------------

struct Answer {
  std::atomic<bool> have_lock{false}, done{false}, late{false};
  std::string collective = "null", more;
};

// Two JSON texts: the open collective, and further members of the file's object.
void take_answer(PyObject* found, Answer& answer) {
  const char *collective, *more;
  if (PyTuple_Check(found) && PyArg_ParseTuple(found, "ss", &collective, &more)) {
    answer.collective = collective;
    answer.more = more;
  }
}

void* ask(void* p) {
  auto* shared = static_cast<std::shared_ptr<Answer>*>(p);
  hide_io(true);
  {
    // If the interpreter ends meanwhile, the thread ends here and what it holds is lost.
    PyGILState_STATE state = PyGILState_Ensure();
    Answer& answer = **shared;
    answer.have_lock = true;
    if (!answer.late && g_describe) {
      Ref found(PyObject_CallNoArgs(g_describe));
      if (found) take_answer(found.get(), answer);
      if (PyErr_Occurred()) PyErr_Clear();
    }
    answer.done = true;
    PyGILState_Release(state);
  }
  delete shared;
  return nullptr;
}

// What torch knows, and whether the lock could be had.
std::shared_ptr<Answer> ask_torch(int64_t patience) {
  constexpr size_t kStack = 1 << 20;
  constexpr int64_t kStep = 10'000'000;
  auto answer = std::make_shared<Answer>();
  if (g_stop_describing || !Py_IsInitialized()) {
    answer->have_lock = true;
    return answer;
  }
  auto* shared = new std::shared_ptr<Answer>(answer);
  if (!start_thread(ask, shared, kStack)) {
    delete shared;
    answer->have_lock = true;
    return answer;
  }
  for (int64_t waited = 0; waited < patience && !answer->done; waited += kStep) {
    timespec pause{0, kStep};
    nanosleep(&pause, nullptr);
  }
  answer->late = !answer->done;
  return answer;
}

// The thread that holds the interpreter lock while nobody else gets it: its index.
size_t holder_of_lock(const SeenProcess& seen) {
#if PY_VERSION_HEX < 0x030C0000
  for (const PythonThread& each : python_threads({}))
    if (each.state == _PyThreadState_UncheckedGet())
      for (size_t i = 0; i < seen.threads.size(); ++i)
        if (seen.threads[i].tid == each.tid) return i;
#endif
  for (size_t i = 0; i < seen.threads.size(); ++i)
    if (seen.threads[i].call != "futex") return i;
  return 0;
}

// The collective that gloo was seen to begin and not to end, as JSON.
std::string open_collective() {
  OpenCollective open;
  if (!open_collectives(&open, 1)) return "null";
  std::string out = "{\"group\":";
  append_json_string(out, open.group);
  append_arg(out, "seq", int64_t(open.seq));
  append_arg(out, "op", std::string_view(open.operation));
  append_arg(out, "bytes", open.bytes);
  return out + "}";
}

// The watch -----------------------------------------------------------------------------------------------------------

const char* name_of(Doing doing) {
  switch (doing) {
    case Doing::kNothing: return "startup";
    case Doing::kBetween: return "between_steps";
    case Doing::kFetch: return "fetch_wait";
    case Doing::kForward: return "forward";
    case Doing::kBackward: return "backward";
    case Doing::kOptimizer: return "optimizer";
    case Doing::kOwnCode: return "own_code";
    case Doing::kEvaluate: return "evaluation";
    case Doing::kInfer: return "inference";
  }
  return "";
}

struct Seen {
  int64_t moved = 0, longest = 0, steps = 0, step = -1, tid = 0;
  Doing doing = Doing::kNothing;
  bool trains = false, stepped = false;
  bool annotated = false, saving = false;  // saving: a checkpoint that is annotated
};

// The node of an open event: its key is a node, a use of one, or where a loop keeps one.
bool node_of(const void* key, Node* out) {
  Memory memory;
  PyObject head;
  const void* at = key;
  if (!memory.copy(&head, at, sizeof head)) return false;
  if (Py_TYPE(&head) == &g_use_type) {
    NodeUse use;
    return memory.copy(static_cast<void*>(&use), at, offsetof(NodeUse, args)) &&
           memory.copy(static_cast<void*>(out), use.node, sizeof(Node)) && Py_TYPE(out) == &g_node_type;
  }
  if (Py_TYPE(&head) != &g_node_type && !memory.copy(&at, key, sizeof at)) return false;
  return memory.copy(static_cast<void*>(out), at, sizeof(Node)) && Py_TYPE(out) == &g_node_type;
}

// What an annotated program is doing, by the innermost of its open events that says so.
Doing annotated_doing(bool* saving) {
  constexpr uint32_t kDeepest = 64;
  Stack stack;
  *saving = false;
  if (!open_events(getpid(), &stack)) return Doing::kOwnCode;
  for (uint32_t i = stack.size; i-- > 0 && stack.size - i <= kDeepest;) {
    Frame frame;
    alignas(Node) char place[sizeof(Node)];
    Node* node = reinterpret_cast<Node*>(place);
    if (!Memory{}.copy(&frame, stack.frames + i, sizeof frame) || !node_of(frame.key, node)) continue;
    auto [name, category] = dft::name_of(node->name_id);
    EventKind kind = kind_of_event(category, name);
    switch (kind.mark) {
      case Mark::kWait: return Doing::kFetch;
      case Mark::kForward: return Doing::kForward;
      case Mark::kLearn: return Doing::kBackward;
      case Mark::kUpdate: return Doing::kOptimizer;
      case Mark::kEvaluate: return Doing::kEvaluate;
      case Mark::kBody: return Doing::kOwnCode;
      default: break;
    }
    *saving |= kind.cls == EventClass::kCheckpoint;
    if (*saving) break;
  }
  return Doing::kOwnCode;
}

bool busy(Busy what) { return g_progress.since[int(what)].load(std::memory_order_acquire) != 0; }

// Of all training threads; the activity is that of the thread that progressed last.
Seen look() {
  Seen out;
  out.longest = g_progress.longest.exchange(0);
  for (Shown& each : g_shown) {
    if (!each.taken.load(std::memory_order_acquire)) continue;
    int64_t moved = each.now.moved.load(std::memory_order_acquire);
    if (!moved) continue;
    out.longest = std::max(out.longest, each.now.longest.exchange(0));
    out.steps += each.now.steps.load(std::memory_order_relaxed);
    out.trains |= each.now.trains.load(std::memory_order_relaxed);
    if (moved < out.moved) continue;
    out.moved = moved;
    out.step = each.now.at_step.load(std::memory_order_relaxed);
    out.tid = each.tid.load(std::memory_order_relaxed);
    out.doing = each.now.doing.load(std::memory_order_relaxed);
    out.stepped = each.now.stepped.load(std::memory_order_relaxed);
  }
  out.moved = std::max(out.moved, g_progress.moved.load(std::memory_order_acquire));
  for (auto& since : g_progress.since) out.moved = std::max(out.moved, since.load(std::memory_order_acquire));
  return out;
}

// Of a program without automatic tracing, which has no training threads.
void look_at_annotations(Seen& seen) {
  seen.annotated = true;
  seen.tid = getpid();
  seen.steps = g_progress.steps.load(std::memory_order_relaxed);
  seen.step = g_progress.step.load(std::memory_order_relaxed) + 1;
  seen.trains = seen.steps > 0;
  seen.doing = annotated_doing(&seen.saving);
  if (!seen.trains && seen.doing == Doing::kOwnCode) seen.doing = Doing::kNothing;
}

const char* stage_of(const Seen& seen) {
  if (busy(Busy::kCheckpoint) || seen.saving) return "checkpoint";
  if (busy(Busy::kCompile)) return "compilation";
  if (busy(Busy::kGroup)) return "startup";
  return name_of(seen.doing);
}

// What is known of a hang when it is reported.
struct Hang {
  SeenProcess process;
  std::shared_ptr<Answer> answer;      // of torch, if it came
  bool lock_held = false;              // nobody else gets the interpreter lock
  const SeenThread* thread = nullptr;  // the one that trains, or that holds the lock
  std::string where, file, collective;
  const char* state = "";
};

class Watch {
 public:
  Watch() : began_(clock_now()), resumed_(began_) {}
  void look_once();
  int64_t nap() const { return std::clamp(g_patience.load() / 20, kSecond / 20, kSecond); }
  void slept(int64_t asked, int64_t took) {
    // The whole process was stopped, or the machine: it could not progress.
    if (took > 3 * asked + 2 * kSecond) resumed_ = clock_now();
  }

 private:
  void learn(const Seen& seen, bool special);
  bool is_watched(const Seen& seen, int64_t idle, bool* patient);
  bool program_has_ended();
  int others_hang(const Seen& seen);
  void report(const Seen& seen, int64_t idle, int because_of);
  void report_resumed(int64_t idle);
  void find_out(const Seen& seen, Hang& hang);
  std::string as_json(const Seen& seen, const Hang& hang, const SessionFacts& facts, int64_t idle,
                      int because_of) const;
  std::string sentence(const Seen& seen, int64_t idle, const Hang& hang) const;
  bool save();
  std::string who() const { return rank_.empty() ? "" : "rank " + rank_ + ": "; }

  int64_t began_, resumed_;
  int64_t pauses_[kPauses] = {};
  size_t known_ = 0;
  int64_t longest_ever_ = 0;
  bool special_pause_ = false;
  int64_t last_moved_ = 0, used_then_ = 0;
  uint64_t collective_end_ = 0;  // ticks
  int64_t collective_seen_ = 0;
  int64_t looked_at_others_ = 0, others_changed_ = 0;

  // The hang that was reported.
  int64_t hung_since_ = 0;
  bool announced_ = false;
  std::string rank_, name_, body_;
  std::string ended_;    // after how many seconds it went on, as JSON
  std::string earlier_;  // hangs that are over
};

void Watch::learn(const Seen& seen, bool special) {
  special_pause_ |= special;
  if (!seen.longest) return;
  longest_ever_ = std::max(longest_ever_, seen.longest);
  if (!special_pause_ && !hung_since_) pauses_[known_++ % kPauses] = seen.longest;
  special_pause_ = special;
}

// The main thread's outermost frame is no longer the program's: the interpreter is ending.
bool Watch::program_has_ended() {
  StackReader reader;
  for (const PythonThread& each : python_threads({})) {
    if (each.tid != getpid()) continue;
    const auto& frames = reader.read(each.state, 256);
    return frames.empty() || (frames.back().function != "<module>" && frames.back().file != "<frozen runpy>");
  }
  return true;
}

bool Watch::is_watched(const Seen& seen, int64_t idle, bool* patient) {
  OpenCollective open;
  bool meeting = seen.annotated && open_collectives(&open, 1);
  bool special = busy(Busy::kCheckpoint) || busy(Busy::kCompile) || busy(Busy::kBarrier) || busy(Busy::kGroup) ||
                 seen.saving || (meeting && !strcmp(open.operation, "barrier"));
  *patient = special || seen.doing == Doing::kEvaluate || seen.doing == Doing::kBetween ||
             seen.doing == Doing::kNothing || seen.steps < kFirstSteps || known_ < kFewPauses;
  if (seen.doing == Doing::kInfer && !busy(Busy::kCollective)) return false;
  bool blocked = (processor_time() - used_then_) * kIdleShare < idle;
  if (!seen.trains) return (g_in_group || busy(Busy::kGroup)) && blocked;  // not training: watched only as a rank
  // Annotations may be incomplete: an evaluation may look like own code.
  if (seen.annotated) return g_in_group && (blocked || meeting || seen.doing != Doing::kOwnCode);
  if (g_in_group || special) return true;
  if (seen.doing == Doing::kBetween) return false;
  if (seen.doing == Doing::kOwnCode && seen.stepped)  // maybe after the last step
    return blocked;
  return true;
}

void Watch::look_once() {
  Seen seen = look();
  int64_t now = clock_now();
  if (uint64_t end = last_collective_end(); end != collective_end_) {
    collective_end_ = end;
    collective_seen_ = now;
  }
  seen.moved = std::max(seen.moved, collective_seen_);
  bool unwatched = false;
  if (seen.moved != last_moved_) {
    last_moved_ = seen.moved;
    used_then_ = processor_time();
  }
  int64_t idle = now - std::max({seen.moved, began_, resumed_});
  if (g_progress.by_records.load(std::memory_order_relaxed)) look_at_annotations(seen);
  if (hung_since_ && seen.moved > hung_since_) report_resumed(seen.moved - hung_since_);
  bool patient = false;
  unwatched = !is_watched(seen, idle, &patient);
  bool special = seen.doing == Doing::kEvaluate || seen.doing == Doing::kBetween || busy(Busy::kCheckpoint) ||
                 busy(Busy::kCompile) || busy(Busy::kBarrier) || busy(Busy::kGroup) || seen.steps < 1;
  learn(seen, special);
  int64_t patience = g_patience.load(), usual = *std::max_element(pauses_, pauses_ + kPauses);
  if (known_ < kFewPauses) usual = std::max(usual, longest_ever_);
  int64_t limit = std::max((patient ? kPatient : 1) * patience, kUsual * usual);
  if (!unwatched && idle > limit) {
    // A program without peers may take its time to exit.
    if (!announced_ && (g_in_group || !program_has_ended())) report(seen, idle, -1);
  } else if (!hung_since_ && idle > patience / 2) {
    if (int other = others_hang(seen); other >= 0) report(seen, idle, other);
  }
}

// The number of another rank of this run that reports a hang, else -1. Checked rarely, and only if the directory has
// changed.
int Watch::others_hang(const Seen& seen) {
  int64_t now = clock_now();
  if (now - looked_at_others_ < std::max(2 * kSecond, g_patience.load() / 4)) return -1;
  looked_at_others_ = now;
  SessionFacts facts;
  if (!session_facts(&facts)) return -1;
  std::string directory = facts.path.substr(0, facts.path.rfind('/') + 1);
  struct stat status;
  if (stat(directory.empty() ? "." : directory.c_str(), &status) != 0) return -1;
  int64_t changed = int64_t(status.st_mtim.tv_sec) * kSecond + status.st_mtim.tv_nsec;
  if (changed == others_changed_) return -1;
  others_changed_ = changed;
  DIR* listing = opendir(directory.empty() ? "." : directory.c_str());
  if (!listing) return -1;
  int found = -1;
  while (const dirent* entry = readdir(listing)) {
    int rank = -1;
    if (sscanf(entry->d_name, "hang_%d", &rank) != 1 || !strstr(entry->d_name, ".json")) continue;
    if (std::to_string(rank) == facts.rank || rank == g_rank) continue;
    std::string path = directory + entry->d_name;
    if (stat(path.c_str(), &status) != 0 || int64_t(status.st_mtim.tv_sec) * kSecond < seen.moved) continue;
    char head[1024];
    int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, head, sizeof head - 1);
    if (fd >= 0) close(fd);
    head[std::max<ssize_t>(n, 0)] = 0;
    if (strstr(head, ("\"run\":\"" + facts.run + "\"").c_str())) found = rank;
  }
  closedir(listing);
  return found;
}

std::string seconds_text(int64_t ns) {
  char text[32];
  snprintf(text, sizeof text, "%.1f", double(ns) / 1e9);
  return text;
}

void say(const std::string& text) {
  std::string line = "dftracer: " + text + "\n";
  iovec piece{line.data(), line.size()};
  write_to_stderr(&piece, 1);
}

std::string Watch::sentence(const Seen& seen, int64_t idle, const Hang& hang) const {
  std::string out = who() + "no progress for " + std::to_string(idle / kSecond) + " s: ";
  if (seen.step >= 0 && seen.trains) out += "step " + std::to_string(seen.step) + ", ";
  std::string stage = stage_of(seen);
  std::replace(stage.begin(), stage.end(), '_', ' ');
  out += stage;
  if (!hang.where.empty()) out += ", at " + hang.where;
  if (!hang.file.empty()) out += ", waiting for " + hang.file;
  if (hang.lock_held) out += ", one call holds the interpreter lock";
  return out;
}

void Watch::find_out(const Seen& seen, Hang& hang) {
  constexpr int64_t kForTheLock = 2 * kSecond;
  hang.process = look_at_process(getpid());
  hang.answer = ask_torch(kForTheLock);
  hang.lock_held = !hang.answer->have_lock;
  const auto& threads = hang.process.threads;
  auto thread = std::find_if(threads.begin(), threads.end(), [&](auto& t) { return t.tid == seen.tid; });
  if (thread == threads.end()) thread = threads.begin();
  if (hang.lock_held && !threads.empty()) thread = threads.begin() + ptrdiff_t(holder_of_lock(hang.process));
  char state = hang.process.state;
  if (thread != threads.end()) {
    hang.thread = &*thread;
    hang.where = users_place(*thread);
    if (thread->path.starts_with("/") && !thread->path.starts_with("/dev/")) hang.file = thread->path;
    state = thread->state;
  }
  if (hang.where.empty()) hang.where = place_in(hang.process);
  hang.collective = hang.answer->done ? hang.answer->collective : "null";
  if (hang.collective == "null") hang.collective = open_collective();
  hang.state = hang.collective != "null" ? "waiting" : state == 'R' ? "running" : "blocked";
}

// The file's object, up to what save() adds.
std::string Watch::as_json(const Seen& seen, const Hang& hang, const SessionFacts& facts, int64_t idle,
                           int because_of) const {
  auto null_or = [](bool known, const std::string& text) { return known ? text : std::string("null"); };
  auto raw = [](std::string& to, std::string_view key, const std::string& value) {
    append_key(to, key);
    to += value;
  };
  auto list = [](std::string& to, std::string_view key, const auto& elements, auto&& append) {
    append_key(to, key);
    to += '[';
    for (const auto& each : elements) {
      if (to.back() == '}') to += ',';
      append(each);
    }
    to += ']';
  };
  std::string quoted;
  append_json_string(quoted, hang.file);

  std::string out = "{\"rank\":" + null_or(!rank_.empty(), rank_);
  append_arg(out, "run", facts.run);
  append_arg(out, "attempt", facts.attempt);
  append_arg(out, "pid", getpid());
  append_arg(out, "host", facts.host);
  raw(out, "world_size", null_or(!facts.world_size.empty(), facts.world_size));
  append_arg(out, "state", std::string_view(hang.state));
  raw(out, "step", null_or(seen.trains, std::to_string(seen.step)));
  append_arg(out, "stage", std::string_view(stage_of(seen)));
  append_arg(out, "where", hang.where);
  raw(out, "since_s", seconds_text(idle));
  raw(out, "collective", hang.collective);
  raw(out, "open_file", null_or(!hang.file.empty(), quoted));
  for (const char* unknown : {"exit_code", "signal", "exception"}) raw(out, unknown, "null");
  append_arg(out, "moved_us", (clock_now() - idle) / 1000);
  append_arg(out, "written_us", clock_now() / 1000);
  raw(out, "patience_s", seconds_text(g_patience.load()));
  raw(out, "in_group", g_in_group ? "true" : "false");
  raw(out, "because_of", null_or(because_of >= 0, std::to_string(because_of)));
  bool holder = hang.lock_held && hang.thread;
  raw(out, "lock_held_by", null_or(holder, holder ? std::to_string(hang.thread->tid) : ""));
  if (hang.answer->done && !hang.answer->more.empty()) out.append(",").append(hang.answer->more);
  append_key(out, "threads");
  append_threads(out, hang.process);
  list(out, "workers", children_of(getpid()), [&](int child) { append_process(out, look_at_process(child)); });
  list(out, "events", facts.events, [&](const std::string& event) { out += event; });
  return out;
}

void Watch::report(const Seen& seen, int64_t idle, int because_of) {
  SessionFacts facts;
  if (!session_facts(&facts)) return;
  rank_ = g_rank >= 0 ? std::to_string(g_rank.load()) : facts.rank;
  Hang hang;
  find_out(seen, hang);
  body_ = as_json(seen, hang, facts, idle, because_of);
  if (!hung_since_) {
    hung_since_ = std::max({seen.moved, began_, resumed_});
    name_.clear();
    ended_ = "null";
    ask_to_keep("hang");
  }
  bool saved = save();
  if (because_of >= 0) return;
  announced_ = true;
  std::string text = sentence(seen, idle, hang);
  say(saved ? text + "; see " + name_ : text + "; its stacks could not be written");
}

void Watch::report_resumed(int64_t after) {
  if (announced_) say(who() + "resumed after " + std::to_string(after / kSecond) + " s");
  ended_ = seconds_text(after);
  save();
  earlier_ += earlier_.empty() ? "{\"moved_us\":" : ",{\"moved_us\":";
  append_int(earlier_, hung_since_ / 1000);
  append_key(earlier_, "went_on_after_s");
  earlier_ += ended_ + "}";
  hung_since_ = 0;
  announced_ = false;
}

// Never overwrites the file of another process.
bool Watch::save() {
  static std::string mine;
  static pid_t mine_of = 0;
  if (mine_of != getpid()) mine.clear();
  mine_of = getpid();
  SessionFacts facts;
  if (mine.empty()) {
    if (!session_facts(&facts)) return false;
    std::string stem = facts.path.substr(0, facts.path.rfind('/') + 1) + "hang_" + (rank_.empty() ? "0" : rank_);
    mine = stem + ".json";
    if (access(mine.c_str(), F_OK) == 0) mine = stem + "-" + facts.host + "-" + std::to_string(getpid()) + ".json";
  }
  std::string text = body_;
  append_key(text, "went_on_after_s");
  text += ended_;
  append_key(text, "earlier");
  text.append("[").append(earlier_).append("]}\n");
  std::string fresh = mine + ".new";
  QuietWrites quiet;
  int fd = open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) {
    mine.clear();
    return false;
  }
  size_t at = 0;
  while (at < text.size()) {
    ssize_t n = write(fd, text.data() + at, text.size() - at);
    if (n <= 0) break;
    at += size_t(n);
  }
  bool whole = close(fd) == 0 && at == text.size() && rename(fresh.c_str(), mine.c_str()) == 0;
  if (!whole) unlink(fresh.c_str());
  name_ = mine;
  return whole;
}

// Kept while the thread is paused; a child gets a new one.
Watch& watch_of_this_process() {
  static Watch* known = nullptr;
  static pid_t of = 0;
  if (of != getpid()) known = new Watch;  // the parent's may be in the middle of anything
  of = getpid();
  return *known;
}

void* watch(void*) {
  pthread_setname_np(pthread_self(), "dftracer-watch");
  hide_io(true);
  Watch* watching = &watch_of_this_process();
  for (;;) {
    int64_t nap = watching->nap(), before = clock_now();
    if (!g_watch.sleep(nap)) return nullptr;
    watching->slept(nap, clock_now() - before);
    if (!g_patience.load() || !session_armed()) continue;
    try {
      watching->look_once();
    } catch (const std::bad_alloc&) {
      // The next round tries again.
    }
  }
}

// Python --------------------------------------------------------------------------------------------------------------

// watch_hangs(seconds, describe, at_once, by_records): 0 seconds end it. `describe` asks torch about open collectives;
// `by_records`: the program is annotated by hand.
PyObject* watch_hangs(PyObject*, PyObject* args) {
  long long seconds;
  PyObject* describe;
  int at_once, by_records = 0;
  if (!PyArg_ParseTuple(args, "LOp|p", &seconds, &describe, &at_once, &by_records)) return nullptr;
  g_progress.by_records = by_records;
  Py_XINCREF(describe);  // the one before is leaked: it may be running
  g_describe = describe;
  g_stop_describing = false;
  g_patience = seconds * kSecond;
  if (at_once) watch_this_process();
  Py_RETURN_NONE;
}

// stop_describing_hangs(): the interpreter is about to end; do not call `describe` any more.
PyObject* stop_describing_hangs(PyObject*, PyObject*) {
  g_stop_describing = true;
  Py_RETURN_NONE;
}

// in_group(rank): this process takes part in a process group, as this rank.
PyObject* in_group(PyObject*, PyObject* rank) {
  long long number = PyLong_AsLongLong(rank);
  if (number == -1 && PyErr_Occurred()) return nullptr;
  g_rank = number;
  g_in_group = true;
  watch_this_process();
  Py_RETURN_NONE;
}

template <void (*note)(Busy, int64_t)>
PyObject* busy_with(PyObject*, PyObject* what) {
  long number = PyLong_AsLong(what);
  if (number == -1 && PyErr_Occurred()) return nullptr;
  if (number >= 0 && number < int(Busy::kCount)) note(Busy(number), clock_now());
  Py_RETURN_NONE;
}

PyMethodDef g_watch_functions[] = {
    {"watch_hangs", watch_hangs, METH_VARARGS, nullptr},
    {"stop_describing_hangs", stop_describing_hangs, METH_NOARGS, nullptr},
    {"in_group", in_group, METH_O, nullptr},
    {"busy_begins", busy_with<busy_begins>, METH_O, nullptr},
    {"busy_ends", busy_with<busy_ends>, METH_O, nullptr},
    {"stacks_of", stacks_of, METH_O, nullptr},
    {},
};

}  // namespace

void watch_this_process() {
  constexpr size_t kStack = 512 << 10;
  if (g_patience.load(std::memory_order_relaxed)) g_watch.start(watch, kStack);
}

void pause_hang_watch() { g_watch.pause(); }

void resume_hang_watch() { g_watch.resume(); }

bool init_hang_watch(PyObject* module) { return PyModule_AddFunctions(module, g_watch_functions) == 0; }

}  // namespace dft::py
