// A test program is a list of TESTs, each run in a process of its own: the engine's state is the process's.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <sstream>
#include <string>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#define DFT_TSAN 1
#else
#define DFT_TSAN 0
#endif
#if defined(__SANITIZE_ADDRESS__)
#define DFT_ASAN 1
#else
#define DFT_ASAN 0
#endif
// Under qemu (tools/aarch64.sh) everything takes longer, and nothing limits a process's address space.
#ifndef DFT_EMULATED
#define DFT_EMULATED 0
#endif
#if DFT_ASAN || DFT_TSAN || DFT_EMULATED
#define DFT_SLOW 1
#else
#define DFT_SLOW 0
#endif

namespace check {

struct Case {
  const char* name;
  void (*body)();
};
inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
struct Add {
  Add(const char* name, void (*body)()) { cases().push_back({name, body}); }
};
inline std::atomic<int>& failures() {
  static std::atomic<int> n{0};
  return n;
}

inline void failed(const char* file, int line, const std::string& what) {
  if (failures().fetch_add(1) < 20) fprintf(stderr, "  %s:%d: %s\n", file, line, what.c_str());
}

template <typename A, typename B>
void equal(const char* file, int line, const char* text, const A& a, const B& b) {
  if (a == b) return;
  std::ostringstream out;
  out << text << ": " << a << " != " << b;
  failed(file, line, out.str().substr(0, 2000));
}

inline int run(int argc, char** argv) {
  int bad = 0;
  for (const Case& c : cases()) {
    if (argc > 1 && !strstr(c.name, argv[1])) continue;
    fflush(nullptr);
    pid_t child = fork();
    if (child == 0) {
      alarm(500);  // a test that hangs ends before ctest's limit, which would leave it behind
      c.body();
      exit(failures() ? 1 : 0);
    }
    int status = 0;
    timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    waitpid(child, &status, 0);
    clock_gettime(CLOCK_MONOTONIC, &after);
    bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    bad += !good;
    printf("%s %6.2f s  %s", good ? "ok    " : "FAILED",
           double(after.tv_sec - before.tv_sec) + double(after.tv_nsec - before.tv_nsec) / 1e9, c.name);
    if (WIFSIGNALED(status)) printf(" (signal %d)", WTERMSIG(status));
    printf("\n");
  }
  return bad ? EXIT_FAILURE : EXIT_SUCCESS;
}

}  // namespace check

#define TEST(name)                                 \
  static void name();                              \
  static const check::Add add_##name(#name, name); \
  static void name()
#define CHECK(x) ((x) ? void() : check::failed(__FILE__, __LINE__, #x))
#define CHECK_EQ(a, b) check::equal(__FILE__, __LINE__, #a " == " #b, a, b)
// For what the rest of a test cannot do without.
#define REQUIRE(x) ((x) ? void() : (check::failed(__FILE__, __LINE__, #x), exit(1)))
#define TEST_MAIN \
  int main(int argc, char** argv) { return check::run(argc, argv); }
