// Names, descriptors, limits and disks that do not behave.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "check.hpp"
#include "recording.hpp"

using namespace dft;

#if defined(__SANITIZE_THREAD__)
// The sanitizer knows one table of descriptors for all threads, but the writer has its own: a file of the program under
// a number that the writer uses as well is no race.
extern "C" const char* __tsan_default_suppressions() { return "race:descriptors_closed_by_the_program\n"; }
#endif

static const uint32_t kEvent = intern("event", "test");

// File systems that lack what others have.
static bool g_no_locks = false, g_no_rename_flags = false, g_slow_links = false, g_slow_truncation = false;

extern "C" int flock(int fd, int operation) {
  if (!g_no_locks) return int(syscall(SYS_flock, fd, operation));
  errno = ENOSYS;
  return -1;
}

extern "C" int renameat2(int from_dir, const char* from, int to_dir, const char* to, unsigned flags) noexcept {
  if (!g_no_rename_flags) return int(syscall(SYS_renameat2, from_dir, from, to_dir, to, flags));
  errno = EINVAL;
  return -1;
}

extern "C" int link(const char* from, const char* to) noexcept {
  int result = int(syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
  if (g_slow_links && result == 0) usleep(20000);
  return result;
}

extern "C" int ftruncate(int fd, off_t size) noexcept {
  int result = int(syscall(SYS_ftruncate, fd, size));
  if (g_slow_truncation) usleep(20000);
  return result;
}

static int in_child(void (*body)(const Scratch&), const Scratch& dir) {
  pid_t pid = fork();
  if (pid == 0) {
    body(dir);
    exit(check::failures() ? 1 : 0);
  }
  int status;
  waitpid(pid, &status, 0);
  return status;
}

TEST(a_name_taken_by_a_live_process) {
  Scratch dir;
  configure(small_settings(dir));
  int ready[2], go[2];
  REQUIRE(pipe(ready) == 0 && pipe(go) == 0);
  pid_t other = fork();
  if (other == 0) {
    start_session(dir / "run", "app");
    record(kEvent, 1);
    flush_session(60000);
    char c = 0;
    if (write(ready[1], &c, 1) != 1 || read(go[0], &c, 1) != 1) abort();
    record(kEvent, 2);
    exit(0);
  }
  char c = 0;
  REQUIRE(read(ready[0], &c, 1) == 1);
  REQUIRE(start_session(dir / "run", "app"));
  record(kEvent, 3);
  REQUIRE(flush_session(60000));
  std::string mine = session_path();
  CHECK(mine != dir / "run.pfw.gz");
  CHECK(mine.starts_with(dir / "run-") && mine.ends_with("-app.pfw.gz"));
  REQUIRE(write(go[1], &c, 1) == 1);
  int status;
  waitpid(other, &status, 0);
  finish_session();
  CHECK_EQ(read_trace(mine).named("event").size(), 1u);
  CHECK_EQ(read_trace(dir / "run.pfw.gz").named("event").size(), 2u);
  CHECK_EQ(dir.files().size(), 2u);
}

TEST(a_second_session_of_a_process_takes_a_name_of_its_own) {
  Scratch dir;
  configure(small_settings(dir));
  std::vector<std::string> paths;
  for (int64_t events : {5, 1}) {
    REQUIRE(start_session(dir / "run", "app"));
    for (int64_t n = 0; n < events; ++n) record(kEvent, n);
    finish_session();
    paths.push_back(session_path());
    CHECK_EQ(int64_t(read_trace(paths.back()).named("event").size()), events);
  }
  CHECK_EQ(paths[0], dir / "run.pfw.gz");
  CHECK(paths[1].starts_with(dir / "run-") && paths[1].ends_with("-app.pfw.gz"));
  CHECK_EQ(read_trace(paths[0]).named("event").size(), 5u);
  CHECK_EQ(dir.files().size(), 2u);
}

// A run of its own, as a process is that another program has started.
static void as_new_run(const char* id) { setenv("DFTRACER_RUN", id, 1); }

static void record_five(const Scratch& dir, const char* name, int64_t first) {
  configure(small_settings(dir));
  REQUIRE(start_session(dir / name, "app"));
  for (int64_t n = 0; n < 5; ++n) record(kEvent, first + n);
  finish_session();
}

static void check_five(const std::string& path, int64_t first) {
  Trace trace = read_trace(path);
  CHECK(trace.closed);
  auto events = trace.named("event");
  REQUIRE(events.size() == 5);
  for (int64_t n = 0; n < 5; ++n) CHECK_EQ(events[size_t(n)]["args"]["n"].integer(), first + n);
}

TEST(the_finished_trace_of_another_run_is_moved_aside) {
  Scratch dir;
  for (int64_t i = 0; i < 3; ++i) {
    as_new_run(("r" + std::to_string(i)).c_str());
    record_five(dir, "run", 10 * i);
  }
  check_five(dir / "run-r0.pfw.gz", 0);
  check_five(dir / "run-r1.pfw.gz", 10);
  check_five(dir / "run.pfw.gz", 20);
  CHECK_EQ(read_trace(dir / "run.pfw.gz").named("HH")[0]["args"]["run"].text, "r2");
  CHECK_EQ(dir.files().size(), 3u);
}

TEST(a_run_that_comes_back_to_its_name_replaces_nothing) {
  Scratch dir;
  for (const char* run : {"a", "b", "a", "b"}) {
    as_new_run(run);
    record_five(dir, "run", run[0]);
  }
  CHECK_EQ(dir.files().size(), 4u);
  for (auto& path : dir.files()) CHECK_EQ(read_trace(path).named("event").size(), 5u);
}

TEST(what_is_no_trace_stays_as_it_is) {
  Scratch dir;
  std::string text = "my notes\n", empty;
  std::ofstream(dir / "run.pfw.gz") << text;
  std::ofstream(dir / "none.pfw.gz") << empty;
  REQUIRE(symlink("/nowhere/at/all", (dir / "link.pfw.gz").c_str()) == 0);
  for (const char* name : {"run", "none", "link"}) {
    as_new_run(name);
    record_five(dir, name, 0);
    CHECK(session_path().starts_with(dir / (std::string(name) + "-")));
    check_five(session_path(), 0);
  }
  CHECK_EQ(read_bytes(dir / "run.pfw.gz"), text);
  CHECK_EQ(std::filesystem::file_size(dir / "none.pfw.gz"), 0u);
  CHECK(std::filesystem::is_symlink(dir / "link.pfw.gz"));
}

TEST(the_trace_of_a_killed_run_is_completed_and_moved_aside) {
  for (bool locks : {true, false}) {
    g_no_locks = !locks;
    Scratch dir;
    int status = in_child(
        [](const Scratch& d) {
          as_new_run("killed");
          configure(small_settings(d));
          start_session(d / "run", "app");
          for (int64_t n = 0; n < 2000; ++n) record(kEvent, n);
          flush_session(60000);
          record(kEvent, 2000);
          kill(getpid(), SIGKILL);
        },
        dir);
    CHECK(WIFSIGNALED(status));
    status = in_child(
        [](const Scratch& d) {
          as_new_run("next");
          record_five(d, "run", 7);
        },
        dir);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    check_five(dir / "run.pfw.gz", 7);
    Trace trace = read_trace(dir / "run-killed.pfw.gz");
    CHECK(trace.closed);
    CHECK_EQ(trace.named("event").size(), 2001u);
    CHECK(dir.files(".ring").empty());
    g_no_locks = false;
  }
}

static void leave_a_ring(const Scratch& dir) {
  int status = in_child(
      [](const Scratch& d) {
        configure(small_settings(d));
        start_session(d / "run", "app");
        for (int64_t n = 0; n < 100; ++n) record(kEvent, n);
        flush_session(60000);
        record(kEvent, 100);
        kill(getpid(), SIGKILL);
      },
      dir);
  REQUIRE(WIFSIGNALED(status) && dir.files(".ring").size() == 1);
}

TEST(one_reader_completes_a_trace_without_locks) {
  g_no_locks = g_slow_truncation = true;
  Scratch dir;
  leave_a_ring(dir);
  int go[2], done[2];
  REQUIRE(pipe(go) == 0 && pipe(done) == 0);
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) {
    pid_t pid = fork();
    if (pid == 0) {
      char c;
      close(go[1]);
      if (read(go[0], &c, 1) != 0) abort();
      for (size_t n = recover_directory(dir.path()).size(); n; --n)
        if (write(done[1], "r", 1) != 1) abort();
      _exit(0);
    }
    children.push_back(pid);
  }
  close(go[0]);
  close(go[1]);
  close(done[1]);
  for (pid_t pid : children) waitpid(pid, nullptr, 0);
  char each[8];
  CHECK_EQ(read(done[0], each, sizeof each), 1);
  close(done[0]);
  g_no_locks = g_slow_truncation = false;
  Trace trace = read_trace(dir / "run.pfw.gz");
  CHECK(trace.closed);
  CHECK_EQ(trace.named("event").size(), 101u);
  CHECK(dir.files(".ring").empty() && dir.files(".recovering").empty());
}

TEST(a_reader_that_was_killed_holds_up_others_for_a_minute) {
  g_no_locks = true;
  Scratch dir;
  leave_a_ring(dir);
  std::string ring = dir.files(".ring")[0];
  std::string marker = dir / ("." + ring.substr(ring.rfind('/') + 1) + ".recovering");
  std::ofstream{marker};
  CHECK(recover_directory(dir.path()).empty());
  CHECK_EQ(dir.files(".ring").size(), 1u);
  timespec long_ago[2] = {{1000, 0}, {1000, 0}};
  REQUIRE(utimensat(AT_FDCWD, marker.c_str(), long_ago, 0) == 0);
  CHECK_EQ(recover_directory(dir.path()).size(), 1u);
  g_no_locks = false;
  CHECK_EQ(read_trace(dir / "run.pfw.gz").named("event").size(), 101u);
  CHECK(dir.files(".ring").empty() && access(marker.c_str(), F_OK) != 0);
}

TEST(parts_move_along_with_their_trace) {
  Scratch dir;
  Settings s = small_settings(dir);
  s.rotate_size = 3000;
  s.member_size = 20000;
  for (const char* run : {"old", "new"}) {
    as_new_run(run);
    configure(s);
    REQUIRE(start_session(dir / "run", "app"));
    for (int64_t n = 0; n < 5000; ++n) record(kEvent, n);
    finish_session();
  }
  size_t of_old = 0, of_new = 0, events = 0;
  for (auto& path : dir.files()) {
    Trace trace = read_trace(path);
    bool old = path.starts_with(dir / "run-old");
    CHECK_EQ(trace.named("HH")[0]["args"]["run"].text, old ? "old" : "new");
    (old ? of_old : of_new) += 1;
    events += trace.named("event").size();
  }
  CHECK(of_old > 2);
  CHECK(of_new > 2);
  CHECK_EQ(events, 10000u);
  CHECK(access((dir / "run-old-part2.pfw.gz").c_str(), F_OK) == 0);
}

TEST(left_over_parts_are_not_written_over) {
  Scratch dir;
  Settings s = small_settings(dir);
  s.rotate_size = 3000;
  s.member_size = 20000;
  for (const char* run : {"old", "new"}) {
    as_new_run(run);
    configure(s);
    REQUIRE(start_session(dir / "run", "app"));
    for (int64_t n = 0; n < 5000; ++n) record(kEvent, n);
    finish_session();
    // As rotation leaves it that keeps the last parts only.
    if (run[0] == 'o') REQUIRE(unlink((dir / "run.pfw.gz").c_str()) == 0);
  }
  std::map<std::string, size_t> events;
  for (auto& path : dir.files()) {
    Trace trace = read_trace(path);
    events[trace.named("HH")[0]["args"]["run"].text] += trace.named("event").size();
  }
  CHECK_EQ(events["new"], 5000u);
  CHECK(events["old"] > 3000);
}

TEST(many_processes_of_many_runs_and_one_name) {
  for (bool locks : {true, false}) {
    for (bool renames : {true, false}) {
      g_no_locks = !locks;
      g_no_rename_flags = !renames;
      Scratch dir;
      std::vector<pid_t> children;
      for (int i = 0; i < 12; ++i) {
        pid_t pid = fork();
        if (pid == 0) {
          as_new_run(("r" + std::to_string(i % 3)).c_str());
          record_five(dir, "run", i);
          exit(check::failures() ? 1 : 0);
        }
        children.push_back(pid);
      }
      for (pid_t pid : children) {
        int status;
        waitpid(pid, &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
      }
      CHECK_EQ(dir.files().size(), 12u);
      size_t events = 0;
      for (auto& path : dir.files()) events += read_trace(path).named("event").size();
      CHECK_EQ(events, 60u);
      g_no_locks = g_no_rename_flags = false;
    }
  }
}

TEST(one_finished_trace_and_many_movers) {
  g_no_locks = g_no_rename_flags = true;
  Scratch dir;
  in_child(
      [](const Scratch& d) {
        as_new_run("old");
        record_five(d, "run", 0);
      },
      dir);
  g_slow_links = true;
  int go[2];
  REQUIRE(pipe(go) == 0);
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) {
    pid_t pid = fork();
    if (pid == 0) {
      char c;
      close(go[1]);
      if (read(go[0], &c, 1) != 0) abort();
      as_new_run(("r" + std::to_string(i)).c_str());
      record_five(dir, "run", 10 * i);
      exit(check::failures() ? 1 : 0);
    }
    children.push_back(pid);
  }
  close(go[1]);
  close(go[0]);
  for (pid_t pid : children) {
    int status;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  g_no_locks = g_no_rename_flags = g_slow_links = false;
  check_five(dir / "run-old.pfw.gz", 0);
  CHECK_EQ(dir.files().size(), 7u);
  for (auto& path : dir.files()) CHECK_EQ(read_trace(path).named("event").size(), 5u);
}

TEST(a_move_that_was_cut_short_is_finished) {
  Scratch dir;
  as_new_run("old");
  record_five(dir, "run", 0);
  REQUIRE(link((dir / "run.pfw.gz").c_str(), (dir / "run-old.pfw.gz").c_str()) == 0);
  std::string marker = dir / ".run.pfw.gz.moving";
  std::ofstream{marker};
  as_new_run("next");
  record_five(dir, "run", 10);
  CHECK(session_path() != dir / "run.pfw.gz");  // the mover may be at work
  timespec long_ago[2] = {{1000, 0}, {1000, 0}};
  REQUIRE(utimensat(AT_FDCWD, marker.c_str(), long_ago, 0) == 0);
  as_new_run("last");
  record_five(dir, "run", 20);
  check_five(dir / "run-old.pfw.gz", 0);
  check_five(dir / "run.pfw.gz", 20);
  CHECK_EQ(dir.files().size(), 3u);
  CHECK(access(marker.c_str(), F_OK) != 0);
}

TEST(a_trace_that_was_removed_stays_removed) {
  Scratch dir;
  in_child(
      [](const Scratch& d) {
        configure(small_settings(d));
        start_session(d / "run", "app");
        record(kEvent, 0);
        flush_session(60000);
        kill(getpid(), SIGKILL);
      },
      dir);
  REQUIRE(unlink((dir / "run.pfw.gz").c_str()) == 0);
  recover_directory(dir.path());
  CHECK(dir.files().empty());
}

TEST(descriptors_closed_by_the_program) {
  for (bool compress : {true, false}) {
    Scratch dir;
    configure(small_settings(dir, compress));
    REQUIRE(start_session(dir / "run", "app"));
    record(kEvent, 0);
    REQUIRE(flush_session(60000));
    // What a daemonising program does; then its own files take the numbers.
    for (int fd = 3; fd < 1024; ++fd) close(fd);
    std::vector<int> own;
    for (int i = 0; i < 300; ++i)
      own.push_back(open((dir / ("own" + std::to_string(i))).c_str(), O_CREAT | O_RDWR, 0600));
    for (int64_t n = 1; n < 20000; ++n) record(kEvent, n);
    CHECK(flush_session(60000));
    std::thread([] { record(kEvent, 0); }).join();  // needs another ring
    finish_session();
    for (int fd : own) {
      struct stat st;
      CHECK(fstat(fd, &st) == 0 && st.st_size == 0);
    }
    Trace trace = read_trace(dir / (compress ? "run.pfw.gz" : "run.pfw"));
    CHECK(trace.closed);
    auto numbers = trace.numbers("event");
    CHECK_EQ(numbers[getpid()].size(), 20000u);
    CHECK(counts_up(numbers[getpid()]));
  }
}

static void limit_files(uint64_t size) {
  rlimit limit;
  getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = size;
  setrlimit(RLIMIT_FSIZE, &limit);
}

TEST(a_limit_on_file_sizes_and_later_room_again) {
  for (bool compress : {true, false}) {
    Scratch dir;
    Settings s = small_settings(dir, compress);
    s.ring_dir = "/dev/shm";
    s.ring_size = 1 << 20;
    configure(s);
    REQUIRE(start_session(dir / "run", "app"));
    int64_t n = 0;
    for (; n < 200; ++n) record(kEvent, n);
    REQUIRE(flush_session(60000));
    uint64_t size = std::filesystem::file_size(session_path());
    limit_files(size + 50);
    for (; n < 1000; ++n) record(kEvent, n);
    CHECK(!flush_session(60000));
    CHECK_EQ(std::filesystem::file_size(session_path()) <= size + 50, true);
    limit_files(RLIM_INFINITY);
    for (; n < 1200; ++n) record(kEvent, n);
    CHECK(flush_session(60000));
    finish_session();
    Trace trace = read_trace(dir / (compress ? "run.pfw.gz" : "run.pfw"));
    CHECK(trace.closed);
    auto numbers = trace.numbers("event");
    CHECK_EQ(numbers[getpid()].size(), 1200u);
    CHECK(counts_up(numbers[getpid()]));
    CHECK_EQ(trace.end()["args"]["dropped"].integer(), 0);
  }
}

TEST(a_disk_that_stays_full_drops_and_counts_and_never_blocks) {
  Scratch dir;
  Settings s = small_settings(dir);
  s.ring_dir = "/dev/shm";
  configure(s);
  REQUIRE(start_session(dir / "run", "app"));
  record(kEvent, 0);
  REQUIRE(flush_session(60000));
  limit_files(std::filesystem::file_size(session_path()) + 10);
  record(kEvent, 1);
  CHECK(!flush_session(60000));
  // Though it may wait a minute for the writer: a refusing disk is no reason to wait.
  for (int64_t n = 2; n < 20000; ++n) record(kEvent, n);
  uint64_t dropped = session_stats().dropped[int(Drop::kDisk)];
  CHECK(dropped > 10000);
  limit_files(RLIM_INFINITY);
  CHECK(flush_session(60000));
  finish_session();
  Trace trace = read_trace(dir / "run.pfw.gz");
  CHECK_EQ(trace.named("event").size() + uint64_t(trace.end()["args"]["dropped_disk"].integer()), 20000u);
}

TEST(a_directory_that_cannot_be_made) {
  Scratch dir;
  std::ofstream(dir / "file") << "in the way";
  Settings s = small_settings(dir);
  configure(s);
  REQUIRE(start_session(dir / "file/run", "app"));
  for (int64_t n = 0; n < 5000; ++n) record(kEvent, n);
  CHECK(!flush_session(60000));
  finish_session();
  CHECK_EQ(read_bytes(dir / "file"), "in the way");
}

TEST(a_directory_made_on_the_way) {
  Scratch dir;
  configure(small_settings(dir));
  REQUIRE(start_session(dir / "a/b/c/run", "app"));
  record(kEvent, 0);
  finish_session();
  CHECK_EQ(read_trace(dir / "a/b/c/run.pfw.gz").named("event").size(), 1u);
}

TEST(a_size_limit_drops_and_counts) {
  for (bool compress : {true, false}) {
    Scratch dir;
    Settings s = small_settings(dir, compress);
    s.max_size = 30000;
    s.member_size = 8192;
    configure(s);
    REQUIRE(start_session(dir / "run", "app"));
    for (int64_t n = 0; n < 50000; ++n) record(kEvent, n);
    CHECK(flush_session(60000));
    for (int64_t n = 0; n < 50; ++n) record(kEvent, 50000 + n);
    finish_session();
    Trace trace = read_trace(dir / (compress ? "run.pfw.gz" : "run.pfw"));
    CHECK(trace.closed);
    CHECK(std::filesystem::file_size(dir / (compress ? "run.pfw.gz" : "run.pfw")) < 60000);
    auto kept = trace.named("event").size();
    CHECK(kept > 50);
    CHECK_EQ(int64_t(kept) + trace.end()["args"]["dropped_size_limit"].integer(), 50050);
    CHECK(counts_up(trace.numbers("event")[getpid()]));
  }
}

TEST(parts_and_the_oldest_of_them_removed) {
  for (bool compress : {true, false}) {
    Scratch dir;
    Settings s = small_settings(dir, compress);
    s.rotate_size = compress ? 3000 : 50000;
    s.rotate_keep = 3;
    s.member_size = 20000;
    configure(s);
    REQUIRE(start_session(dir / "run", "app"));
    for (int64_t n = 0; n < 20000; ++n) record(kEvent, n);
    finish_session();
    auto files = dir.files();
    CHECK_EQ(files.size(), 3u);
    CHECK(access((dir / (compress ? "run.pfw.gz" : "run.pfw")).c_str(), F_OK) != 0);
    size_t last = 0;
    for (auto& path : files) {
      Trace trace = read_trace(path);
      CHECK(trace.closed);
      CHECK_EQ(trace.end()["args"]["num_events"].integer(), int64_t(trace.records.size() - 1));
      if (!trace.end()["args"].has("continues")) ++last;
      auto ns = trace.numbers("event")[getpid()];
      for (size_t i = 1; i < ns.size(); ++i) CHECK_EQ(ns[i], ns[i - 1] + 1);
    }
    CHECK_EQ(last, 1u);
  }
}

TEST(a_long_command_line_and_many_names_fit_or_are_cut) {
  Scratch dir;
  Settings s = small_settings(dir);
  s.member_size = 1;
  s.facts.emplace_back("rank", std::string(600000, 'r'));
  configure(s);
  REQUIRE(start_session(dir / "run", "app"));
  record(kEvent, 0);
  finish_session();
  CHECK_EQ(read_trace(dir / "run.pfw.gz").named("event").size(), 1u);
}

TEST(names_beyond_what_the_ring_file_holds_never_stand_for_others) {
  Scratch dir;
  in_child(
      [](const Scratch& d) {
        configure(small_settings(d));
        start_session(d / "run", "app");
        record(kEvent, 0);
        intern(std::string(300000, 'L'), "test");
        uint32_t small = intern("small", "test");
        uint32_t next = intern("next", "test");
        record(small, 1);
        record(next, 2);
        kill(getpid(), SIGKILL);
      },
      dir);
  auto done = recover_directory(dir.path());
  REQUIRE(done.size() == 1);
  for (auto& r : read_trace(done[0]).records) {
    if (r["args"]["n"].text == "1") CHECK(r["name"].text == "small" || r["name"].text == "?");
    if (r["args"]["n"].text == "2") CHECK(r["name"].text == "next" || r["name"].text == "?");
  }
}

TEST_MAIN
