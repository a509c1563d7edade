// kill -9 at arbitrary moments of a real recording process, then recovery: not one event is missing or double.
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <random>
#include <thread>

#include "check.hpp"
#include "recording.hpp"

using namespace dft;

static const uint32_t kEvent = intern("event", "test");
static constexpr int kThreads = 3;

struct Shared {
  std::atomic<int64_t> recorded[kThreads];
  std::atomic<int> begun;
};

static Shared* share() {
  void* p = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return new (p) Shared{};
}

// Records for ever, in pauses and bursts; says in shared memory how far it got.
static void record_until_killed(Shared* shared, int i, bool pauses) {
  for (int64_t n = 0;; ++n) {
    record(kEvent, n, ",\"lane\":" + std::to_string(i));
    shared->recorded[i].store(n + 1);
    if (n == 0) ++shared->begun;
    if (n % 200 == 199 && (pauses || DFT_SLOW)) usleep(500);
  }
}

// Files without a byte are of processes that were killed between making the file and their first write.
static std::vector<std::string> parts_in_order(const Scratch& dir, bool compress) {
  std::string suffix = compress ? ".pfw.gz" : ".pfw";
  std::vector<std::string> out;
  for (int part = 1;; ++part) {
    std::string path = dir / ("run" + (part > 1 ? "-part" + std::to_string(part) : "") + suffix);
    if (access(path.c_str(), F_OK) != 0) break;
    if (!read_bytes(path).empty()) out.push_back(path);
  }
  // Killed before the requested name was its own, the last part has its first one.
  for (auto& path : dir.files(suffix))
    if (!read_bytes(path).empty() && std::find(out.begin(), out.end(), path) == out.end()) out.push_back(path);
  return out;
}

// Half-way through the growth of its ring, with nothing of it on disk.
static void kill_while_the_ring_grows() {
  Scratch dir;
  Shared* shared = share();
  const int64_t enough = 9000;
  pid_t child = fork();
  if (child == 0) {
    Settings s = small_settings(dir, true);
    s.ring_size = 4 << 20;
    s.flush_ms = 1000;
    configure(s);
    start_session(dir / "run", "app");
    for (int64_t n = 0; n < enough; ++n) {
      record(kEvent, n, ",\"lane\":0,\"s\":\"" + std::string(100, 'x') + "\"");
      shared->recorded[0].store(n + 1);
    }
    kill(getpid(), SIGKILL);
  }
  int status;
  waitpid(child, &status, 0);
  recover_directory(dir.path());
  std::vector<int64_t> found;
  for (auto& path : parts_in_order(dir, true))
    for (auto& r : read_trace(path).named("event")) found.push_back(r["args"]["n"].integer());
  CHECK_EQ(found.size(), size_t(shared->recorded[0].load()));
  CHECK(counts_up(found));
  CHECK(dir.files(".ring").empty());
}

static void kill_and_recover(bool compress, bool rotating, int rounds) {
  std::mt19937 draw(unsigned(compress * 2 + rotating));
  for (int round = 0; round < rounds; ++round) {
    Scratch dir;
    Shared* shared = share();
    unsigned delay = draw() % 60000;
    bool pauses = round % 3 != 2;
    pid_t child = fork();
    if (child == 0) {
      Settings s = small_settings(dir, compress);
      s.flush_ms = 1 + unsigned(round) % 20;
      s.member_size = 20000;
      if (rotating) s.rotate_size = compress ? 6000 : 60000;
      configure(s);
      start_session(dir / "run", "app");
      std::vector<std::thread> threads;
      for (int i = 0; i < kThreads; ++i) threads.emplace_back(record_until_killed, shared, i, pauses);
      threads[0].join();
    }
    while (shared->begun.load() < kThreads) usleep(200);
    usleep(delay);
    kill(child, SIGKILL);
    int status;
    waitpid(child, &status, 0);
    REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

    auto done = recover_directory(dir.path());
    CHECK_EQ(done.size(), 1u);
    CHECK(recover_directory(dir.path()).empty());
    CHECK(dir.files(".ring").empty());
    std::vector<std::vector<int64_t>> lanes(kThreads);
    auto parts = parts_in_order(dir, compress);
    REQUIRE(!parts.empty());
    for (auto& path : parts) {
      Trace trace = read_trace(path);
      CHECK(trace.closed);
      CHECK_EQ(trace.named("end").size(), 1u);
      const Json& end = trace.end();
      CHECK_EQ(end["name"].text, "end");
      if (path == parts.back()) {
        CHECK(end["args"]["recovered"].kind == Json::kTrue);
        CHECK_EQ(end["args"]["dropped"].integer(), 0);
      } else {
        CHECK_EQ(end["args"]["continues"].integer(), 1);
      }
      CHECK_EQ(end["args"]["num_events"].integer(), int64_t(trace.records.size() - 1));
      for (auto& r : trace.named("event"))
        lanes[size_t(r["args"]["lane"].integer())].push_back(r["args"]["n"].integer());
    }
    for (int i = 0; i < kThreads; ++i) {
      CHECK(counts_up(lanes[size_t(i)]));
      int64_t said = shared->recorded[i].load(), found = int64_t(lanes[size_t(i)].size());
      CHECK(found == said || found == said + 1);  // killed between recording and saying so
    }
    munmap(shared, sizeof(Shared));
    if (check::failures()) {
      fprintf(stderr, "  in round %d\n", round);
      return;
    }
  }
}

static constexpr int kRounds = DFT_SLOW ? 4 : 8;

TEST(killed_while_the_ring_grows) { kill_while_the_ring_grows(); }

TEST(gzip) { kill_and_recover(true, false, kRounds); }
TEST(plain) { kill_and_recover(false, false, kRounds); }
TEST(gzip_rotating) { kill_and_recover(true, true, kRounds); }
TEST(plain_rotating) { kill_and_recover(false, true, kRounds); }

TEST(killed_while_finishing) {
  std::mt19937 draw(9);
  for (int round = 0; round < (DFT_SLOW ? 15 : 60); ++round) {
    Scratch dir;
    Shared* shared = share();
    pid_t child = fork();
    if (child == 0) {
      Settings s = small_settings(dir, round % 2);
      configure(s);
      start_session(dir / "run", "app");
      for (int64_t n = 0; n < 50; ++n) record(kEvent, n);
      shared->begun = 1;
      finish_session();
      pause();
    }
    while (!shared->begun.load()) usleep(20);
    usleep(draw() % 3000);
    kill(child, SIGKILL);
    int status;
    waitpid(child, &status, 0);
    recover_directory(dir.path());
    std::vector<std::string> files;
    for (auto& path : dir.files(round % 2 ? ".pfw.gz" : ".pfw"))
      if (!read_bytes(path).empty()) files.push_back(path);  // killed between making the file and its first write
    REQUIRE(files.size() == 1);
    Trace trace = read_trace(files[0]);
    CHECK(trace.closed);
    CHECK_EQ(trace.named("end").size(), 1u);
    auto numbers = trace.numbers("event");
    REQUIRE(numbers.size() == 1);
    CHECK_EQ(numbers.begin()->second.size(), 50u);
    CHECK(counts_up(numbers.begin()->second));
    CHECK_EQ(trace.end()["args"]["num_events"].integer(), int64_t(trace.records.size() - 1));
    CHECK(dir.files(".ring").empty());
    munmap(shared, sizeof(Shared));
  }
}

TEST(killed_before_anything_was_written) {
  Scratch dir;
  pid_t child = fork();
  if (child == 0) {
    Settings s = small_settings(dir);
    s.flush_ms = 600000;
    configure(s);
    start_session(dir / "run", "app");
    record(kEvent, 0);
    kill(getpid(), SIGKILL);
  }
  int status;
  waitpid(child, &status, 0);
  auto done = recover_directory(dir.path());
  REQUIRE(done.size() == 1);
  Trace trace = read_trace(done[0]);
  CHECK_EQ(trace.named("event").size(), 1u);
  CHECK(trace.end()["args"]["recovered"].kind == Json::kTrue);
}

TEST(several_readers_at_once_complete_a_trace_once) {
  Scratch dir;
  pid_t child = fork();
  if (child == 0) {
    configure(small_settings(dir));
    start_session(dir / "run", "app");
    for (int64_t n = 0; n < 150; ++n) record(kEvent, n);
    flush_session(60000);  // its file is open: killed before that, it leaves an empty one beside the recovered
    for (int64_t n = 150; n < 300; ++n) record(kEvent, n);
    kill(getpid(), SIGKILL);
  }
  int status;
  waitpid(child, &status, 0);
  std::atomic<int> completed{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 6; ++i) readers.emplace_back([&] { completed += int(recover_directory(dir.path()).size()); });
  for (auto& t : readers) t.join();
  CHECK_EQ(completed.load(), 1);
  auto files = dir.files(".pfw.gz");
  REQUIRE(files.size() == 1);
  Trace trace = read_trace(files[0]);
  CHECK_EQ(trace.named("end").size(), 1u);
  CHECK_EQ(trace.named("event").size(), 300u);
}

TEST_MAIN
