// Calls of a stand-in CUDA runtime, of which the process holds two copies, while they are replaced and restored.
#include <dlfcn.h>

#include <cerrno>
#include <thread>

#include "check.hpp"
#include "intercept/intercept.hpp"
#include "recording.hpp"

using namespace dft;

#if defined(__SANITIZE_THREAD__)
// The sanitizer takes mapping a page for writing it: at the end of a session the page with the next id is exchanged for
// a private one, so that a call that is late may still take an id.
extern "C" const char* __tsan_default_suppressions() { return "race:dft::RingFile::unmap\n"; }
#endif

using CallCuda = int (*)(const char*, long, int, long);

static CallCuda load(const char* library) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!handle) fprintf(stderr, "%s\n", dlerror());
  return handle ? reinterpret_cast<CallCuda>(dlsym(handle, "call_cuda")) : nullptr;
}

// The stand-ins leave 40 and the number of the copy in errno.
static bool reaches(CallCuda call, int copy, const char* name, long size, long stream) {
  errno = 0;
  return call(name, size, 1, stream) == 0 && errno == 40 + copy;
}

static void start(const Scratch& dir, const std::string& name) {
  Settings s = small_settings(dir);
  s.trace_cuda = true;
  configure(s);
  REQUIRE(start_session(dir / name, "app"));
}

TEST(threads_call_while_sessions_begin_and_end) {
  Scratch dir;
  CallCuda calls[] = {load(CALLER_1), load(CALLER_2)};
  REQUIRE(calls[0] && calls[1]);
  // What the first replacement prepares is published by the slots, which no sanitizer sees.
  start(dir, "first");
  finish_session();
  stop_interception();
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, launched{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      while (!stop) {
        for (int n = 0; n < 20; ++n) wrong += !reaches(calls[i % 2], i % 2 + 1, "cudaMemcpyAsync", 10, 7);
        wrong += !reaches(calls[i % 2], i % 2 + 1, "cudaStreamSynchronize", 0, 200'000);
        wrong += !reaches(calls[i % 2], i % 2 + 1, "cudaGraphLaunch", 0, 7);
        ++launched;
      }
    });
  size_t recorded = 0;
  for (int session = 0; session < 10; ++session) {
    start(dir, "run" + std::to_string(session));
    // Each thread may be inside a call that began before: one more has begun and ended since.
    for (int before = launched; launched - before < 5;) usleep(1000);
    finish_session();
    stop_interception();
    Trace trace = read_trace(session_path());
    recorded += trace.named("cudaGraphLaunch").size();
    for (const Json& event : trace.named("cudaStreamSynchronize")) CHECK_EQ(event["args"]["stream"].integer(), 200'000);
  }
  stop = true;
  for (std::thread& t : threads) t.join();
  CHECK_EQ(wrong.load(), 0);
  CHECK(recorded > 0);
}

TEST(every_call_is_a_record_or_counted) {
  Scratch dir;
  CallCuda call = load(CALLER_1);
  REQUIRE(call);
  start(dir, "run");
  usleep(5000);
  REQUIRE(reaches(call, 1, "cudaGraphLaunch", 0, 7));  // a trace begins with its first record
  for (int i = 0; i < 3000; ++i) REQUIRE(reaches(call, 1, "cudaMemcpyAsync", 10, 7));
  finish_session();
  Trace trace = read_trace(session_path());
  int64_t counted = trace.end()["args"]["cuda_short_calls"].integer();
  CHECK_EQ(counted + int64_t(trace.named("cudaMemcpyAsync").size()), 3000);
  stop_interception();
}

TEST_MAIN
