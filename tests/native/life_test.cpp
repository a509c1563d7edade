// Start, flush, sleep, finish: alone and against each other.
#include <dirent.h>
#include <signal.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "check.hpp"
#include "intercept/io_record.hpp"
#include "record/process_life.hpp"
#include "recording.hpp"

using namespace dft;

static const uint32_t kEvent = intern("event", "test");

static constexpr int kSessions = DFT_SLOW ? 20 : 40;

static size_t entries(const char* directory) {
  size_t n = 0;
  DIR* d = opendir(directory);
  while (readdir(d)) ++n;
  closedir(d);
  return n;
}

static size_t mappings() {
  std::ifstream in("/proc/self/maps");
  size_t n = 0;
  for (std::string line; std::getline(in, line);) ++n;
  return n;
}

// Or a live process would be taken for a dead one, and its trace completed by others.
TEST(a_process_and_its_parent_agree_on_when_it_began) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  usleep(50000);  // some ticks of the clock of processes
  pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    uint64_t start = process_start_time(uint32_t(getpid()));
    if (write(ends[1], &start, sizeof start) != sizeof start) _exit(1);
    pause();
  }
  uint64_t own = 0;
  REQUIRE(read(ends[0], &own, sizeof own) == sizeof own);
  CHECK(own > process_start_time(uint32_t(getpid())));
  CHECK_EQ(own, process_start_time(uint32_t(pid)));
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  CHECK_EQ(process_start_time(uint32_t(pid)), 0u);
}

TEST(nothing_recorded_leaves_no_file) {
  Scratch dir;
  configure(small_settings(dir));
  REQUIRE(start_session(dir / "run", "app"));
  CHECK(!start_session(dir / "other", "app"));
  finish_session();
  finish_session();
  CHECK(dir.files().empty());
  CHECK(!record(kEvent, 0));
}

TEST(sessions_in_sequence_leave_nothing_behind) {
  Scratch dir;
  configure(small_settings(dir));
  size_t descriptors = 0, maps = 0;
  std::atomic<int> round{-1}, done{0};
  std::thread other([&] {  // attached to every session in turn
    for (int i = 0; i < kSessions; ++i) {
      while (round.load() < i) usleep(100);
      record(kEvent, 1);
      done.store(i + 1);
    }
  });
  for (int i = 0; i < kSessions; ++i) {
    REQUIRE(start_session(dir / ("run" + std::to_string(i)), "app"));
    record(kEvent, 0);
    round.store(i);
    while (done.load() <= i) usleep(100);
    finish_session();
    Trace trace = read_trace(dir / ("run" + std::to_string(i) + ".pfw.gz"));
    CHECK_EQ(trace.named("event").size(), 2u);
    CHECK(trace.closed);
    if (i == 10) {
      descriptors = entries("/proc/self/fd");
      maps = mappings();
    }
  }
  other.join();
  CHECK_EQ(entries("/proc/self/fd"), descriptors);
  if (!DFT_SLOW) CHECK(mappings() <= maps + 20);  // the allocator may add some; 30 sessions of rings would add over 100
  CHECK(dir.files(".ring").empty());
}

TEST(flush_means_on_disk) {
  for (bool compress : {true, false}) {
    Scratch dir;
    Settings s = small_settings(dir, compress);
    s.flush_ms = 60000;  // nothing is written for any other reason
    configure(s);
    REQUIRE(start_session(dir / "run", "app"));
    for (int n = 0; n < (DFT_SLOW ? 15 : 60); ++n) {
      record(kEvent, n);
      REQUIRE(flush_session(30000));
      Trace trace = read_trace(session_path());
      CHECK_EQ(trace.named("event").size(), size_t(n + 1));
      CHECK(!trace.closed);
    }
    finish_session();
  }
}

TEST(an_event_after_a_long_pause_reaches_the_file_without_flush) {
  Scratch dir;
  configure(small_settings(dir, false));
  REQUIRE(start_session(dir / "run", "app"));
  for (int n = 0; n < 4; ++n) {
    record(kEvent, n);
    for (int i = 0; i < 30000 && (dir.files(".pfw").empty() ||
                                  read_bytes(dir / "run.pfw").find("\"n\":" + std::to_string(n)) == std::string::npos);
         ++i)
      usleep(1000);
    CHECK_EQ(read_trace(dir / "run.pfw").named("event").size(), size_t(n + 1));
    // Long enough for the writer to fall asleep for want of events; once just around that moment.
    for (int i = 0; i < 3000 && !g_doze.load(); ++i) usleep(n == 2 ? 10 : 1000);
    if (n != 2) CHECK(g_doze.load() == 1);
  }
  finish_session();
}

TEST(wake_ups_are_not_lost_around_falling_asleep) {
  Scratch dir;
  Settings s = small_settings(dir, false);
  s.flush_ms = 2;
  configure(s);
  REQUIRE(start_session(dir / "run", "app"));
  record(kEvent, 0);
  REQUIRE(flush_session(30000));
  for (int n = 1; n < (DFT_SLOW ? 100 : 400); ++n) {
    usleep(unsigned(4000 + (n * 37) % 5000));  // the writer dozes after three idle rounds
    uint64_t before = session_stats().bytes;
    record(kEvent, n);
    for (int i = 0; i < 30000 && session_stats().bytes == before; ++i) usleep(1000);
    CHECK(session_stats().bytes > before);
  }
  finish_session();
  CHECK_EQ(read_trace(dir / "run.pfw").named("event").size(), size_t(DFT_SLOW ? 100 : 400));
}

// An intercepted call has a path of its own into the ring.
TEST(calls_wake_a_writer_that_sleeps) {
  Scratch dir;
  Settings s = small_settings(dir, false);
  s.flush_ms = 2;
  s.counter_ms = 0;  // nothing else wakes it
  configure(s);
  REQUIRE(start_session(dir / "run", "app"));
  record(kEvent, 0);
  REQUIRE(flush_session(30000));
  int others = 0;  // at the beginning, and where the writer is woken anyway
  for (int n = 1; n < 100; ++n) {
    usleep(unsigned(4000 + (n * 37) % 5000));
    uint64_t before = session_stats().bytes, now = ticks();
    errno = n;
    if (!emit_quickly(Call::read_, 0, now, now, 1, Values())) {
      ++others;
      emit_io(tls_thread, Call::read_, 0, now, now, true, 1, 0, Values());
    }
    CHECK_EQ(errno, n);
    for (int i = 0; i < 30000 && session_stats().bytes == before; ++i) usleep(1000);
    CHECK(session_stats().bytes > before);
  }
  CHECK(others < 10);
  finish_session();
}

TEST(finish_while_others_record) {
  for (int round = 0; round < (DFT_SLOW ? 4 : 10); ++round) {
    Scratch dir;
    configure(small_settings(dir));
    REQUIRE(start_session(dir / "run", "app"));
    std::atomic<bool> stop{false};
    std::atomic<int> running{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] {
        int64_t n = 0;
        while (!stop.load()) {
          record(kEvent, n++);
          if (n == 10) ++running;
          if (DFT_SLOW && n % 50 == 0) usleep(500);
        }
      });
    while (running.load() < 4) usleep(100);
    usleep(unsigned(round) * 300);
    finish_session();
    Trace trace = read_trace(dir / "run.pfw.gz");
    stop = true;
    for (auto& t : threads) t.join();
    CHECK(trace.closed);
    auto numbers = trace.numbers("event");
    CHECK_EQ(numbers.size(), 4u);
    for (auto& [tid, ns] : numbers) CHECK(counts_up(ns));
    CHECK_EQ(trace.end()["args"]["num_events"].integer(), int64_t(trace.records.size() - 1));
  }
}

TEST(questions_from_all_sides_while_sessions_come_and_go) {
  Scratch dir;
  Settings s = small_settings(dir);
  s.rotate_size = 20000;
  configure(s);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    for (int64_t n = 0; !stop.load(); ++n) {
      record(kEvent, n);
      if (DFT_SLOW && n % 50 == 0) usleep(500);
    }
  });
  threads.emplace_back([&] {
    while (!stop.load()) {
      flush_session(2000);
      usleep(500);
    }
  });
  threads.emplace_back([&] {
    while (!stop.load()) {
      session_stats();
      session_path();
      now_epoch_ns();
      ticks_to_us(ticks());
      intern("name" + std::to_string(ticks() % 300), "test");
    }
  });
  for (int i = 0; i < (DFT_SLOW ? 8 : 25); ++i) {
    std::string name = "run" + std::to_string(i);
    REQUIRE(start_session(dir / name, "app"));
    usleep(3000);
    record(kEvent, 0);
    rename_session(dir / (name + "-renamed"));
    usleep(20000);
    finish_session();
    CHECK(session_path().ends_with(".pfw.gz"));
  }
  stop = true;
  for (auto& t : threads) t.join();
  CHECK(dir.files(".pfw.gz").size() >= 8u);
  for (auto& path : dir.files(".pfw.gz")) CHECK(read_trace(path).closed);
}

TEST(exit_while_others_record_finishes_the_trace) {
  Scratch dir;
  pid_t child = fork();
  if (child == 0) {
    configure(small_settings(dir));
    start_session(dir / "run", "app");
    static std::atomic<int> busy{0};
    for (int i = 0; i < 3; ++i)
      std::thread([] {
        for (int64_t n = 0;; ++n) {
          record(kEvent, n);
          if (n == 1000) ++busy;
          if (DFT_SLOW && n % 50 == 0) usleep(500);
        }
      }).detach();
    while (busy < 3) usleep(1000);
    exit(0);
  }
  int status;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  Trace trace = read_trace(dir / "run.pfw.gz");
  CHECK(trace.closed);
  CHECK(trace.numbers("event").size() == 3);
  for (auto& [tid, ns] : trace.numbers("event")) CHECK(counts_up(ns));
  CHECK(dir.files(".ring").empty());
}

TEST_MAIN
