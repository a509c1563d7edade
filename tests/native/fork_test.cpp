// fork() in the middle of recording: every process has a trace of its own, and only its own events in it.
#include <link.h>
#include <signal.h>

#include <set>
#include <thread>

#include "check.hpp"
#include "record/nvml.hpp"
#include "recording.hpp"

using namespace dft;

static const uint32_t kParent = intern("parent", "test");
static const uint32_t kChild = intern("child", "test");

enum End { kReturn, kExit, kUnderscoreExit, kKill, kEnds };

static void be_a_child(int number, End end) {
  alarm(60);
  for (int64_t n = 0; n < 50; ++n) record(kChild, n, ",\"child\":" + std::to_string(number));
  if (end == kKill) kill(getpid(), SIGKILL);
  if (end == kUnderscoreExit) _exit(0);
  if (end == kReturn) finish_session();
  exit(0);
}

static void check_children(const Scratch& dir, int children) {
  std::set<int64_t> seen;
  for (auto& path : dir.files(".pfw.gz")) {
    if (path == dir / "run.pfw.gz") continue;
    Trace trace = read_trace(path);
    CHECK(path.ends_with("-fork.pfw.gz"));
    CHECK(trace.closed);
    CHECK(trace.named("parent").empty());
    auto events = trace.named("child");
    CHECK_EQ(events.size(), 50u);
    int64_t child = events.at(0)["args"]["child"].integer();
    CHECK(seen.insert(child).second);
    for (size_t n = 0; n < events.size(); ++n) {
      CHECK_EQ(events[n]["args"]["n"].integer(), int64_t(n));
      CHECK_EQ(events[n]["args"]["child"].integer(), child);
    }
    for (auto& r : trace.records) CHECK_EQ(r["pid"].integer(), trace.records[0]["pid"].integer());
    CHECK_EQ(trace.end()["args"]["num_events"].integer(), int64_t(trace.records.size() - 1));
    CHECK_EQ(trace.end()["args"].has("recovered"), child % kEnds == kKill);
  }
  CHECK_EQ(seen.size(), size_t(children));
}

#if !DFT_TSAN
// gcc's ThreadSanitizer cannot start threads in the child of a process that had several.

TEST(while_several_threads_record) {
  Scratch dir;
  configure(small_settings(dir));
  REQUIRE(start_session(dir / "run", "app"));
  std::atomic<bool> stop{false};
  std::atomic<int64_t> recorded{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      int64_t n = 0;
      for (; !stop.load(); ++n) {
        record(kParent, n);
        // All of it is read back: where forks take long, the rest is recorded slowly.
        bool many = n > 100'000;
        if (many || n % 500 == 0) usleep(many ? 1000 : 100);
      }
      recorded += n;
    });
  const int children = 24;
  std::vector<pid_t> pids;
  for (int i = 0; i < children; ++i) {
    pid_t pid = fork();
    if (pid == 0) be_a_child(i, End(i % kEnds));
    pids.push_back(pid);
    usleep(3000);
  }
  for (pid_t pid : pids) {
    int status;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) || WTERMSIG(status) == SIGKILL);
  }
  stop = true;
  for (auto& t : threads) t.join();
  finish_session();
  recover_directory(dir.path());
  Trace trace = read_trace(dir / "run.pfw.gz");
  CHECK(trace.closed);
  CHECK(trace.named("child").empty());
  CHECK_EQ(int64_t(trace.named("parent").size()), recorded.load());
  for (auto& [tid, ns] : trace.numbers("parent")) CHECK(counts_up(ns));
  // AddressSanitizer's allocator may be locked in these children: they are left alone.
  check_children(dir, DFT_ASAN ? 0 : children);
  CHECK(dir.files(".ring").empty());
}

TEST(while_threads_come_and_go_and_files_open) {
  // The child must not inherit a lock that some thread of the parent held.
  for (int round = 0; round < (DFT_SLOW ? 2 : 5); ++round) {
    Scratch dir;
    Settings s = small_settings(dir);
    s.rotate_size = 5000;
    configure(s);
    REQUIRE(start_session(dir / "run", "app"));
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i)
      threads.emplace_back([&] {
        for (int64_t n = 0; !stop.load(); ++n) {
          std::thread([&] { record(kParent, n); }).join();
          intern("n" + std::to_string(n), "test");
          session_path();
        }
      });
    for (int i = 0; i < 10; ++i) {
      pid_t pid = fork();
      if (pid == 0) {
        alarm(60);
        record(kChild, 0);
        intern("in child " + std::to_string(i), "test");
        finish_session();
        _exit(0);
      }
      int status;
      waitpid(pid, &status, 0);
      CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    stop = true;
    for (auto& t : threads) t.join();
    finish_session();
    CHECK(dir.files(".ring").empty());
  }
}

// At its end every child asks the loader for its libraries, under a lock that a fork does not release.
TEST(while_a_thread_asks_the_loader) {
  Scratch dir;
  configure(small_settings(dir));
  REQUIRE(start_session(dir / "run", "app"));
  std::atomic<bool> stop{false};
  std::thread asks([&] {
    while (!stop.load()) Nvml().driver_loaded();
  });
  int hung = 0;
  for (int i = 0; i < (DFT_SLOW ? 20 : 200); ++i) {
    pid_t pid = fork();
    if (pid == 0) {
      alarm(10);
      dl_iterate_phdr([](dl_phdr_info*, size_t, void*) { return 1; }, nullptr);
      _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    hung += status != 0;
    if (hung) break;
  }
  stop = true;
  asks.join();
  finish_session();
  CHECK_EQ(hung, 0);
}

TEST(grandchildren_have_traces_too) {
  Scratch dir;
  configure(small_settings(dir));
  REQUIRE(start_session(dir / "run", "app"));
  record(kParent, 0);
  pid_t pid = fork();
  if (pid == 0) {
    pid_t grandchild = fork();
    if (grandchild == 0) be_a_child(1, kExit);
    int status;
    waitpid(grandchild, &status, 0);
    be_a_child(0, kReturn);
  }
  int status;
  waitpid(pid, &status, 0);
  finish_session();
  check_children(dir, 2);
}

TEST(the_parent_can_be_killed_and_the_child_goes_on) {
  Scratch dir;
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  pid_t parent = fork();
  if (parent == 0) {
    configure(small_settings(dir));
    start_session(dir / "run", "app");
    for (int64_t n = 0; n < 10; ++n) record(kParent, n);
    flush_session(60000);
    if (fork() == 0) {
      // Lives on with the parent's memory; the parent's lock must have gone with it.
      for (int i = 0; i < 20000 && getppid() == parent; ++i) usleep(1000);
      close(ends[0]);
      be_a_child(0, kExit);
    }
    kill(getpid(), SIGKILL);
  }
  close(ends[1]);
  int status;
  waitpid(parent, &status, 0);
  recover_directory(dir.path());  // or the child does it when it ends: whoever comes first
  char c;
  CHECK_EQ(read(ends[0], &c, 1), 0);  // until the child has ended
  CHECK(dir.files(".ring").empty());
  Trace trace = read_trace(dir / "run.pfw.gz");
  CHECK_EQ(trace.named("parent").size(), 10u);
  CHECK(trace.end()["args"]["recovered"].kind == Json::kTrue);
  check_children(dir, 1);
}
#endif

TEST(a_child_that_records_nothing_leaves_no_file) {
  Scratch dir;
  configure(small_settings(dir));
  REQUIRE(start_session(dir / "run", "app"));
  pid_t pid = fork();
  if (pid == 0) _exit(0);
  int status;
  waitpid(pid, &status, 0);
  record(kParent, 0);
  finish_session();
  CHECK_EQ(dir.files().size(), 1u);
}

TEST(a_fork_before_the_first_record) {
  Scratch dir;
  configure(small_settings(dir));
  REQUIRE(start_session(dir / "run", "app"));
  for (int i = 0; i < 8; ++i) {
    pid_t pid = fork();
    if (pid == 0) be_a_child(i, End(i % kEnds));
    int status;
    waitpid(pid, &status, 0);
  }
  recover_directory(dir.path());
  check_children(dir, 8);
}

TEST_MAIN
