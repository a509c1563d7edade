// Gloo inside libtorch. A collective is an object (AsyncWork) that the caller's thread creates and puts into a queue:
// that is when its rank enters it. A thread of gloo runs it and reports its end. The caller waits on a
// condition variable, at once or, as DDP does, at the end of the backward pass.
//
// The names are those of torch's C++ interface, which may change with its version: unless all of them are found,
// nothing is recorded. Objects of torch are not looked into; the number and type of a tensor's elements come from
// torch's stable C interface.
#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <cstring>

#include "format/json.hpp"
#include "intercept/collectives.hpp"
#include "intercept/device_record.hpp"

namespace dft {
namespace {

enum GlooSymbol : int { kNewGroup, kNewWork, kEnqueue, kExecute, kFinish, kFail, kWait, kGlooSymbols };

#define INTRUSIVE_WORK "N3c1013intrusive_ptrINS0_9AsyncWorkENS1_6detail34intrusive_target_default_null_typeIS3_EEEE"

constexpr const char* kMangled[kGlooSymbols] = {
    // c10d::ProcessGroupGloo::ProcessGroupGloo(intrusive_ptr<Store> const&, int rank, int size, intrusive_ptr<Options>)
    "_ZN4c10d16ProcessGroupGlooC1ERKN3c1013intrusive_ptrINS_5StoreENS1_6detail34intrusive_target_default_null_"
    "typeIS3_EEEEiiNS2_INS0_7OptionsENS5_ISA_EEEE",
    // AsyncWork::AsyncWork(shared_ptr<gloo::Context>, vector<vector<Tensor>> outputs, OpType, uint64_t sequence number,
    //                      milliseconds timeout, char const* title, optional<vector<Tensor>> const& inputs)
    "_ZN4c10d16ProcessGroupGloo9AsyncWorkC2ESt10shared_ptrIN4gloo7ContextEESt6vectorIS6_IN2at6TensorESaIS8_"
    "EESaISA_EENS_6OpTypeEmNSt6chrono8durationIlSt5ratioILl1ELl1000EEEEPKcRKSt8optionalISA_E",
    // ProcessGroupGloo::enqueue(intrusive_ptr<AsyncWork>)
    "_ZN4c10d16ProcessGroupGloo7enqueueE" INTRUSIVE_WORK,
    // static AsyncWork::execute(intrusive_ptr<AsyncWork> const&)
    "_ZN4c10d16ProcessGroupGloo9AsyncWork7executeERKN3c1013intrusive_ptrIS1_NS2_6detail34intrusive_target_default_"
    "null_typeIS1_EEEE",
    // AsyncWork::finishWorkGloo()
    "_ZN4c10d16ProcessGroupGloo9AsyncWork14finishWorkGlooEv",
    // AsyncWork::finishWorkGlooError(exception_ptr const&)
    "_ZN4c10d16ProcessGroupGloo9AsyncWork19finishWorkGlooErrorERKNSt15__exception_ptr13exception_ptrE",
    // std::condition_variable::wait(unique_lock<mutex>&)
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE",
};
#undef INTRUSIVE_WORK

void* g_gloo_real[kGlooSymbols];

template <typename F>
F* original(GlooSymbol symbol) {
  return reinterpret_cast<F*>(__atomic_load_n(&g_gloo_real[symbol], __ATOMIC_ACQUIRE));
}

bool all_found() {
  return std::all_of(std::begin(g_gloo_real), std::end(g_gloo_real),
                     [](void* const& p) { return __atomic_load_n(&p, __ATOMIC_RELAXED) != nullptr; });
}

// By c10d::OpType.
constexpr const char* kOperations[] = {
    "broadcast", "all_reduce", "all_reduce",     "reduce",     "all_gather", "all_gather",     "all_gather",
    "gather",    "scatter",    "reduce_scatter", "all_to_all", "all_to_all", "send",           "recv",
    "recv",      "barrier",    "reduce_scatter", "coalesced",  "all_reduce", "reduce_scatter",
};
constexpr uint8_t kCollectives = std::size(kOperations);

uint32_t g_names[kCollectives], g_wait_name;

const void* this_thread() { return &tls_io_off; }

struct Group {
  std::atomic<const void*> self{nullptr};
  const void* creator = nullptr;  // the thread, until the group has its name
  bool complete = false;          // its creation was seen: its collectives are counted from the first
  int32_t ranks = 0;
  std::atomic<uint64_t> count{0};
  char name[64] = "";
};

enum Stage : uint32_t { kFree, kMade, kQueued };

struct Work {
  std::atomic<const void*> self{nullptr};
  std::atomic<uint32_t> stage{kFree};
  const void* thread = nullptr;  // that entered it
  Group* group = nullptr;
  uint64_t seq = 0;
  int64_t bytes = -1;
  uint8_t operation = 0;
  bool recorded = false;  // by its caller
  uint64_t arrived = 0, began = 0;
  uint64_t queued_ns = 0;  // between the two
};

constexpr size_t kGroups = 64, kWorks = 256;
Group g_groups[kGroups];
Work g_works[kWorks];
std::atomic<uint32_t> g_group_count{0}, g_queued{0};
std::atomic<uint64_t> g_last_end{0};
std::atomic<bool> g_skip_events{false};
// Threads of gloo that have reported the end of a collective and still hold it.
std::atomic<int> g_letting_go{0};
__attribute__((tls_model("initial-exec"))) __thread bool tls_letting_go;
std::atomic_flag g_claiming = ATOMIC_FLAG_INIT;  // held for a few stores; never over a call

struct PythonCall {
  uint64_t seq;
  bool inside, recorded;
};
__attribute__((tls_model("initial-exec"))) __thread PythonCall tls_python_call;

class Claim {
 public:
  Claim() {
    while (g_claiming.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~Claim() { g_claiming.clear(std::memory_order_release); }
};

Work* find_work(const void* self) {
  for (Work& w : g_works)
    if (w.self.load(std::memory_order_acquire) == self) return &w;
  return nullptr;
}

Group* find_group(const void* self) {
  for (Group& g : g_groups)
    if (g.self.load(std::memory_order_acquire) == self) return &g;
  return nullptr;
}

// The slot of a group that was destroyed is reused by the one that gets its address.
Group* slot_for_group(const void* self) {
  if (Group* known = find_group(self)) return known;
  uint32_t at = g_group_count.fetch_add(1, std::memory_order_relaxed);
  if (at >= kGroups) return nullptr;
  g_groups[at].self.store(self, std::memory_order_release);
  return &g_groups[at];
}

void give_number(Group* group) {
  char* p = put(group->name, "gloo:");
  p = put_uint(p, uint64_t(group - g_groups));
  *p = 0;
}

// The slot for the work at this address; slots of works that were created and never queued are reused.
Work* slot_for_work(const void* self) {
  Claim claim;
  Work* free = nullptr;
  for (Work& w : g_works) {
    if (w.self.load(std::memory_order_relaxed) == self) {
      if (w.stage.load(std::memory_order_relaxed) == kQueued) g_queued.fetch_sub(1, std::memory_order_relaxed);
      free = &w;
      break;
    }
    if (!free && w.stage.load(std::memory_order_relaxed) == kFree) free = &w;
  }
  for (Work& w : g_works)
    if (!free && w.stage.load(std::memory_order_relaxed) == kMade) free = &w;
  if (!free) return nullptr;
  free->stage.store(kMade, std::memory_order_relaxed);
  free->self.store(self, std::memory_order_release);
  return free;
}

// torch's C interface of a tensor, from the library that holds gloo.
struct TensorFacts {
  using Numel = int (*)(const void*, int64_t*);
  using Type = int (*)(const void*, int32_t*);
  Numel numel = nullptr;
  Type type = nullptr;

  static const TensorFacts& get() {
    static const TensorFacts facts = [] {
      TensorFacts out;
      Dl_info info;
      if (!dladdr(g_gloo_real[kExecute], &info)) return out;
      void* library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
      if (!library) return out;
      out.numel = reinterpret_cast<Numel>(dlsym(library, "aoti_torch_get_numel"));
      out.type = reinterpret_cast<Type>(dlsym(library, "aoti_torch_get_dtype"));
      return out;
    }();
    return facts;
  }

  int64_t bytes_of(const void* tensor) const {
    constexpr uint8_t kSizes[] = {1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 1, 1, 4, 2};  // c10::ScalarType, to BFloat16
    int64_t elements = 0;
    int32_t type = -1;
    if (!numel || !type_known(tensor, &type) || numel(tensor, &elements) != 0) return 0;
    return type >= 0 && type < int(std::size(kSizes)) ? elements * kSizes[type] : elements;
  }

 private:
  bool type_known(const void* tensor, int32_t* out) const { return type && type(tensor, out) == 0; }
};

// A std::vector's beginning and end; a tensor is one pointer.
struct Vector {
  const char *begin, *end, *capacity;
};
struct OptionalVector {
  Vector value;
  bool engaged;
};

int64_t bytes_of_tensors(const Vector& tensors) {
  int64_t sum = 0;
  for (const char* at = tensors.begin; at < tensors.end; at += sizeof(void*))
    if (*reinterpret_cast<void* const*>(at)) sum += TensorFacts::get().bytes_of(at);
  return sum;
}

int64_t bytes_of_work(const Vector* outputs, const OptionalVector* inputs) {
  int64_t sum = inputs && inputs->engaged ? bytes_of_tensors(inputs->value) : 0;
  if (sum || !outputs) return sum;
  for (const char* at = outputs->begin; at < outputs->end; at += sizeof(Vector))
    sum += bytes_of_tensors(*reinterpret_cast<const Vector*>(at));
  return sum;
}

void hook_new_group(void* self, const void* store, int rank, int size, void* options) {
  original<void(void*, const void*, int, int, void*)>(kNewGroup)(self, store, rank, size, options);
  Group* group = slot_for_group(self);
  if (!group) return;
  give_number(group);
  group->creator = this_thread();
  group->complete = true;
  group->ranks = size;
  group->count.store(0, std::memory_order_relaxed);
}

void hook_new_work(void* self, void* context, const Vector* outputs, uint8_t operation, uint64_t seq, int64_t timeout,
                   const char* title, const OptionalVector* inputs) {
  auto* real =
      original<void(void*, void*, const Vector*, uint8_t, uint64_t, int64_t, const char*, const OptionalVector*)>(
          kNewWork);
  if (io_active() && operation < kCollectives && all_found()) {
    int64_t bytes = bytes_of_work(outputs, inputs);
    if (Work* w = slot_for_work(self)) {
      w->thread = this_thread();
      w->operation = operation;
      w->seq = seq;
      w->bytes = bytes;
      w->began = 0;
    }
  }
  real(self, context, outputs, operation, seq, timeout, title, inputs);
}

void hook_enqueue(void* self, void* const* work) {
  Work* w = io_active() ? find_work(*work) : nullptr;
  if (w && w->stage.load(std::memory_order_relaxed) == kMade) {
    Group* group = slot_for_group(self);
    if (group && !group->name[0]) give_number(group);
    w->group = group;
    if (group && group->complete) w->seq = group->count.fetch_add(1, std::memory_order_relaxed) + 1;
    PythonCall& call = tls_python_call;
    w->recorded = call.inside && call.recorded;
    if (call.inside && !call.seq) call.seq = w->seq;
    w->queued_ns = monotonic_ns();
    w->arrived = ticks();
    g_queued.fetch_add(1, std::memory_order_relaxed);
    w->stage.store(kQueued, std::memory_order_release);
  }
  original<void(void*, void* const*)>(kEnqueue)(self, work);
}

void let_go_begins() {
  if (tls_letting_go) return;
  tls_letting_go = true;
  g_letting_go.fetch_add(1, std::memory_order_relaxed);
}

// The thread takes the next collective or waits for one: it holds none.
void let_go_ended() {
  if (DFT_LIKELY(!tls_letting_go)) return;
  tls_letting_go = false;
  g_letting_go.fetch_sub(1, std::memory_order_release);
}

void hook_execute(void* const* work) {
  let_go_ended();
  if (g_queued.load(std::memory_order_relaxed))
    if (Work* w = find_work(*work)) {
      w->queued_ns = monotonic_ns() - w->queued_ns;
      w->began = ticks();
    }
  original<void(void* const*)>(kExecute)(work);
}

void write_record(uint32_t name, uint64_t start, uint64_t end, std::string_view args) {
  ThreadState* t = io_active() ? io_thread() : nullptr;
  if (!t) return;
  if (t->busy.load(std::memory_order_relaxed)) {
    g_session_calls.count_signal_drop();
    return;
  }
  if (DFT_UNLIKELY(t->head >= t->ease_from)) g_session_calls.ease_off(t);
  Frame f = unopened_frame(t);
  f.start = start;
  emit_span(t, name, f, end, args);
}

// Before the program learns that the collective is over: if it ends next, the record is not lost.
void ended(const void* self, bool failed) {
  if (!g_queued.load(std::memory_order_relaxed)) return;
  Work* w = find_work(self);
  if (!w || w->stage.load(std::memory_order_acquire) != kQueued) return;
  Finished keep_errno;
  uint64_t end = keep_errno.end();
  uint64_t began = w->began ? w->began : w->arrived;
  if (!w->recorded && !g_skip_events.load(std::memory_order_relaxed)) {
    char text[256];
    char* p = put_int(put(text, ",\"bytes\":"), w->bytes);
    if (w->group) {
      p = put(put(put(p, ",\"group\":\""), w->group->name), "\"");
      if (w->group->ranks) p = put_int(put(p, ",\"ranks\":"), w->group->ranks);
    }
    p = put_uint(put(p, ",\"seq\":"), w->seq);
    // How long before its start on this thread the program had entered it.
    p = put_uint(put(p, ",\"queued_us\":"), w->began ? w->queued_ns / 1000 : 0);
    p = put(p, ",\"below_python\":1");
    if (failed) p = put(p, ",\"failed\":1");
    write_record(g_names[w->operation], began, end, {text, size_t(p - text)});
  }
  g_last_end.store(end, std::memory_order_relaxed);
  Claim claim;
  w->stage.store(kFree, std::memory_order_relaxed);
  w->self.store(nullptr, std::memory_order_release);
  g_queued.fetch_sub(1, std::memory_order_relaxed);
}

void hook_finish(void* self) {
  ended(self, false);
  let_go_begins();
  original<void(void*)>(kFinish)(self);
}

void hook_fail(void* self, const void* error) {
  ended(self, true);
  let_go_begins();
  original<void(void*, const void*)>(kFail)(self, error);
}

// Whether this thread has entered a collective that is not over.
bool this_thread_is_met() {
  for (const Work& w : g_works)
    if (w.stage.load(std::memory_order_acquire) == kQueued && w.thread == this_thread()) return true;
  return false;
}

void hook_wait(void* self, void* lock) {
  let_go_ended();
  auto* wait = original<void(void*, void*)>(kWait);
  bool counts =
      g_queued.load(std::memory_order_relaxed) && io_active() && !tls_python_call.inside && this_thread_is_met();
  if (!counts) return wait(self, lock);
  uint64_t start = ticks();
  wait(self, lock);
  Finished keep_errno;
  write_record(g_wait_name, start, keep_errno.end(), ",\"below_python\":1");
}

// The threads that would end them do not exist in the child.
void forget_works() {
  for (Work& w : g_works) {
    w.stage.store(kFree, std::memory_order_relaxed);
    w.self.store(nullptr, std::memory_order_relaxed);
  }
  g_queued.store(0, std::memory_order_relaxed);
  g_letting_go.store(0, std::memory_order_relaxed);
  tls_letting_go = false;
  g_claiming.clear();
}

}  // namespace

void prepare_gloo_records() {
  static bool once = [] {
    for (int i = 0; i < kCollectives; ++i) g_names[i] = intern(kOperations[i], "comm");
    g_wait_name = intern("wait", "comm");
    pthread_atfork(nullptr, nullptr, forget_works);
    return true;
  }();
  (void)once;
}

bool holds_gloo(std::string_view path) {
  size_t slash = path.rfind('/');
  return (slash == std::string_view::npos ? path : path.substr(slash + 1)).starts_with("libtorch");
}

void add_gloo_hooks(std::vector<Hook>* out) {
  void* wrappers[kGlooSymbols] = {
      reinterpret_cast<void*>(hook_new_group), reinterpret_cast<void*>(hook_new_work),
      reinterpret_cast<void*>(hook_enqueue),   reinterpret_cast<void*>(hook_execute),
      reinterpret_cast<void*>(hook_finish),    reinterpret_cast<void*>(hook_fail),
      reinterpret_cast<void*>(hook_wait),
  };
  for (int i = 0; i < kGlooSymbols; ++i) out->push_back({kMangled[i], wrappers[i], &g_gloo_real[i]});
}

size_t open_collectives(OpenCollective* out, size_t most) {
  size_t n = 0;
  for (const Work& w : g_works) {
    if (n == most) break;
    if (w.stage.load(std::memory_order_acquire) != kQueued) continue;
    OpenCollective& o = out[n++];
    o.operation = kOperations[w.operation];
    memcpy(o.group, w.group ? w.group->name : "", w.group ? sizeof(o.group) : 1);
    o.seq = w.seq;
    o.bytes = w.bytes;
    o.since = w.arrived;
  }
  std::sort(out, out + n, [](const OpenCollective& a, const OpenCollective& b) { return a.since < b.since; });
  return n;
}

void wait_for_gloo_threads() {
  timespec pause{0, 200'000};
  for (int i = 0; i < 250 && g_letting_go.load(std::memory_order_acquire) > 0; ++i) nanosleep(&pause, nullptr);
}

uint64_t last_collective_end() { return g_last_end.load(std::memory_order_relaxed); }

void python_collective_begins(bool recorded) { tls_python_call = {0, true, recorded}; }

uint64_t python_collective_ends() {
  tls_python_call.inside = false;
  return tls_python_call.seq;
}

void skip_collectives(bool skip) { g_skip_events.store(skip, std::memory_order_relaxed); }

void name_new_groups(std::string_view name) {
  for (Group& g : g_groups) {
    if (!g.self.load(std::memory_order_acquire) || g.creator != this_thread()) continue;
    g.creator = nullptr;
    size_t n = std::min(name.size(), sizeof(g.name) - 1);
    memcpy(g.name, name.data(), n);
    g.name[n] = 0;
  }
}

}  // namespace dft
