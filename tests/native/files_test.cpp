// Names, descriptors, limits and disks that do not behave.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "check.hpp"
#include "recording.hpp"

using namespace dft;

static const uint32_t kEvent = intern("event", "test");

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

TEST(a_name_left_by_a_finished_process_is_used_again) {
  Scratch dir;
  configure(small_settings(dir));
  for (int64_t events : {5, 1}) {
    REQUIRE(start_session(dir / "run", "app"));
    for (int64_t n = 0; n < events; ++n) record(kEvent, n);
    finish_session();
    CHECK_EQ(int64_t(read_trace(dir / "run.pfw.gz").named("event").size()), events);
  }
}

TEST(the_next_run_under_the_name_of_a_killed_one_is_not_touched_by_recovery) {
  Scratch dir;
  int status = in_child(
      [](const Scratch& d) {
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
        configure(small_settings(d));
        start_session(d / "run", "app");
        record(kEvent, 7);
      },
      dir);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  recover_directory(dir.path());
  Trace trace = read_trace(dir / "run.pfw.gz");
  CHECK(trace.closed);
  auto events = trace.named("event");
  REQUIRE(events.size() == 1);
  CHECK_EQ(events[0]["args"]["n"].integer(), 7);
  CHECK_EQ(dir.files(".ring").size(), 1u);  // what was not recovered is kept
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
