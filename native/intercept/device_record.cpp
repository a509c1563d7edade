#include "intercept/device_record.hpp"

#include <pthread.h>

#include "format/arguments.hpp"
#include "format/json.hpp"

namespace dft {

void* g_device_real[kDeviceSymbols][kCopies];
std::atomic<uint64_t> g_device_limits[int(Limit::kCount)];
ShortCalls g_short_calls[kShortLines];

namespace {

constexpr uint64_t kBlockingNs = 5'000, kStallNs = 100'000;
// After so long, two moments of both clocks give the rate of the processor's counter well enough for a limit.
constexpr uint64_t kCalibrationNs = 1'000'000;

struct Call {
  const char* symbol;
  const char* name;
  const char* category;
};

constexpr Call kDeviceCalls[] = {
#define DEVICE_HOOK(symbol, event, wrapper) {#symbol, #event, "CUDA"},
#define COMM_HOOK(symbol, event, wrapper) {#symbol, #event, "comm"},
#include "intercept/device_hooks.def"
};

uint32_t g_names[kDeviceSymbols];
Anchor g_first;

void set_limits(double ticks_per_ns) {
  g_device_limits[int(Limit::kBlocking)] = uint64_t(double(kBlockingNs) * ticks_per_ns);
  g_device_limits[int(Limit::kStall)] = uint64_t(double(kStallNs) * ticks_per_ns);
}

// False as long as the rate of the clock is not known: then everything is recorded.
bool know_limits() {
  if (g_device_limits[int(Limit::kBlocking)]) return true;
  Anchor now = take_anchor();
  if (now.mono_ns - g_first.mono_ns < kCalibrationNs) return false;
  set_limits(double(now.ticks - g_first.ticks) / double(now.mono_ns - g_first.mono_ns));
  return true;
}

void forget_short_calls() {
  for (ShortCalls& line : g_short_calls) {
    for (auto* each : {&line.calls, &line.ticks, &line.shared_calls, &line.shared_ticks})
      each->store(0, std::memory_order_relaxed);
  }
}

const char* kind_text(int kind) {
  constexpr const char* kKinds[] = {"HtoH", "HtoD", "DtoH", "DtoD", "default"};
  return kind >= 0 && kind < int(std::size(kKinds)) ? kKinds[kind] : nullptr;
}

char* put_facts(char* p, const Call& call, const DeviceFacts& facts, int ret) {
  if (facts.bytes >= 0) p = put_int(put(p, ",\"bytes\":"), facts.bytes);
  if (const char* kind = kind_text(facts.kind)) p = put(put(put(p, ",\"kind\":\""), kind), "\"");
  if (facts.has_stream) p = put_uint(put(p, ",\"stream\":"), reinterpret_cast<uintptr_t>(facts.stream));
  if (facts.graph) p = put_uint(put(p, ",\"graph\":"), reinterpret_cast<uintptr_t>(facts.graph));
  if (call.category[0] == 'c') {
    p = put_communicator(p, facts);
    p = put(p, ",\"below_python\":1");
  }
  if (call.symbol[0] == 'h') p = put(p, ",\"api\":\"hip\"");
  if (ret) p = put_int(put(p, ",\"ret\":"), ret);
  return p;
}

}  // namespace

void prepare_device_records() {
  static bool once = [] {
    for (int i = 0; i < kDeviceSymbols; ++i) g_names[i] = intern(kDeviceCalls[i].name, kDeviceCalls[i].category);
    g_first = take_anchor();
    if (!g_cpu_ticks) set_limits(1);
    // The child counts its own.
    pthread_atfork(nullptr, nullptr, forget_short_calls);
    return true;
  }();
  (void)once;
  forget_short_calls();
}

bool calls_device(std::string_view path) {
  size_t slash = path.rfind('/');
  std::string_view name = slash == std::string_view::npos ? path : path.substr(slash + 1);
  for (std::string_view library : {"libcudart", "libcuda.so", "libnccl", "libamdhip64", "librccl"})
    if (name.starts_with(library)) return false;
  return true;
}

__attribute__((noinline, cold)) void count_on_a_shared_line(ShortCalls& line, uint64_t ticks) {
  const void* nobody = nullptr;
  if (line.owner.compare_exchange_strong(nobody, &tls_io_off, std::memory_order_relaxed)) {
    count_short_call(ticks);
    return;
  }
  line.shared_calls.fetch_add(1, std::memory_order_relaxed);
  line.shared_ticks.fetch_add(ticks, std::memory_order_relaxed);
}

__attribute__((noinline, cold)) void record_device_call(DeviceSymbol symbol, Limit limit, uint64_t start, uint64_t end,
                                                        int ret, const DeviceFacts& facts) {
  int saved = errno;
  if (know_limits() && end - start < g_device_limits[int(limit)]) {
    count_short_call(end - start);
    errno = saved;
    return;
  }
  // The session may have ended during the call.
  ThreadState* t = io_active() ? io_thread() : nullptr;
  if (!t) {
    errno = saved;
    return;
  }
  if (t->busy.load(std::memory_order_relaxed)) {
    g_session_calls.count_signal_drop();
    errno = saved;
    return;
  }
  char text[256];
  char* last = put_facts(text, kDeviceCalls[symbol], facts, ret);
  if (DFT_UNLIKELY(t->head >= t->ease_from)) g_session_calls.ease_off(t);
  Frame f = unopened_frame(t);
  f.start = start;
  emit_span(t, g_names[symbol], f, end, {text, size_t(last - text)});
  errno = saved;
}

void append_short_calls(std::string* args) {
  uint64_t calls = 0, spent = 0;
  for (const ShortCalls& line : g_short_calls) {
    calls += line.calls.load(std::memory_order_relaxed) + line.shared_calls.load(std::memory_order_relaxed);
    spent += line.ticks.load(std::memory_order_relaxed) + line.shared_ticks.load(std::memory_order_relaxed);
  }
  append_arg(*args, "cuda_short_calls", int64_t(calls));
  uint64_t limit = g_device_limits[int(Limit::kBlocking)];
  if (limit) append_arg(*args, "cuda_short_us", int64_t(double(spent) / double(limit) * kBlockingNs / 1000));
}

}  // namespace dft
