// The commit protocol, step by step: the process dies, or the disk refuses, at every single call that changes the file.
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>

#include "check.hpp"
#include "recording.hpp"

using namespace dft;

namespace {

enum Fault { kNone, kDieBefore, kDieHalfway, kDieAfter, kFull };

struct Plan {
  std::atomic<int> calls;  // of pwrite and ftruncate so far
  std::atomic<int> at;     // the call that meets the fault
  std::atomic<int> fault;
  std::atomic<int> refusals;  // for how many calls a full disk stays full
  std::atomic<int64_t> recorded;
};
Plan* g_plan = nullptr;

void die() { kill(getpid(), SIGKILL); }

// Whether this call meets the fault.
bool meets(Fault* fault) {
  *fault = kNone;
  if (!g_plan) return false;
  int call = g_plan->calls.fetch_add(1), at = g_plan->at.load();
  auto planned = Fault(g_plan->fault.load());
  bool now = planned == kFull ? call >= at && call < at + g_plan->refusals.load() : call == at;
  if (now) *fault = planned;
  return now;
}

ssize_t faulty_pwrite(int fd, const void* data, size_t size, off_t offset) {
  Fault fault;
  if (meets(&fault)) {
    if (fault == kDieBefore) die();
    // A full disk takes what still fits.
    if (fault == kDieHalfway || fault == kFull) syscall(SYS_pwrite64, fd, data, size / 2, offset);
    if (fault == kDieHalfway) die();
    if (fault == kFull) {
      errno = ENOSPC;
      return -1;
    }
  }
  ssize_t n = syscall(SYS_pwrite64, fd, data, size, offset);
  if (fault == kDieAfter) die();
  return n;
}

}  // namespace

// These win over libc's in the shared core.
extern "C" ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  return faulty_pwrite(fd, data, size, offset);
}
extern "C" ssize_t pwrite64(int fd, const void* data, size_t size, off_t offset) {
  return faulty_pwrite(fd, data, size, offset);
}
static int faulty_ftruncate(int fd, off_t size) {
  Fault fault = kNone;
  struct stat st;
  // The ring's file grows while it is set up, before there is anything to lose; the writer only cuts.
  bool cuts = fstat(fd, &st) == 0 && size <= st.st_size;
  // A full disk still lets files shrink.
  bool now = cuts && g_plan && g_plan->fault.load() != kFull && meets(&fault);
  if (now && (fault == kDieBefore || fault == kDieHalfway)) die();
  int rc = int(syscall(SYS_ftruncate, fd, size));
  if (now && fault == kDieAfter) die();
  return rc;
}
extern "C" int ftruncate(int fd, off_t size) noexcept { return faulty_ftruncate(fd, size); }
extern "C" int ftruncate64(int fd, off_t size) noexcept { return faulty_ftruncate(fd, size); }

static const uint32_t kEvent = intern("event", "test");

static Plan* make_plan(int at, Fault fault, int refusals = 0) {
  void* p = mmap(nullptr, sizeof(Plan), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* plan = new (p) Plan{};
  plan->at = at;
  plan->fault = fault;
  plan->refusals = refusals;
  return plan;
}

static std::string payload(int64_t n) { return ",\"s\":\"" + std::string(size_t(n * 131 % 400), 'x') + "\""; }

// Small commits, merged tails, full members, large events, parts: everything the writer does.
static void workload(Plan* plan, const Scratch& dir, bool compress, bool rotating) {
  Settings s = small_settings(dir, compress);
  s.flush_ms = 600000;
  s.member_size = 3000;
  if (rotating) s.rotate_size = compress ? 1500 : 6000;
  configure(s);
  start_session(dir / "run", "app");
  g_plan = plan;
  int64_t n = 0;
  for (int burst : {1, 3, 20, 2, 1, 40, 1, 1}) {
    for (int i = 0; i < burst; ++i) {
      record(kEvent, n, payload(n));
      plan->recorded.store(++n);
    }
    flush_session(60000);
  }
  finish_session();
  g_plan = nullptr;
}

static std::vector<std::string> parts_in_order(const Scratch& dir, bool compress) {
  std::string suffix = compress ? ".pfw.gz" : ".pfw";
  std::vector<std::string> out;
  for (int part = 1;; ++part) {
    std::string path = dir / ("run" + (part > 1 ? "-part" + std::to_string(part) : "") + suffix);
    if (access(path.c_str(), F_OK) != 0) break;
    if (!read_bytes(path).empty()) out.push_back(path);  // killed between making the file and its first write
  }
  for (auto& path : dir.files(suffix))
    if (!read_bytes(path).empty() && std::find(out.begin(), out.end(), path) == out.end()) out.push_back(path);
  return out;
}

static void check_whole(const Scratch& dir, bool compress, int64_t recorded, bool exact) {
  CHECK(dir.files(".ring").empty());
  std::vector<int64_t> found;
  auto parts = parts_in_order(dir, compress);
  REQUIRE(!parts.empty());
  for (auto& path : parts) {
    Trace trace = read_trace(path);
    CHECK(trace.closed);
    CHECK_EQ(trace.named("end").size(), 1u);
    CHECK_EQ(trace.end()["args"]["num_events"].integer(), int64_t(trace.records.size() - 1));
    for (auto& r : trace.named("event")) {
      int64_t n = r["args"]["n"].integer();
      found.push_back(n);
      CHECK_EQ(r["args"]["s"].text.size(), size_t(n * 131 % 400));
    }
  }
  CHECK(counts_up(found));
  CHECK(int64_t(found.size()) == recorded || (!exact && int64_t(found.size()) == recorded + 1));
}

static void die_everywhere(bool compress, bool rotating) {
  int total = 1000;
  for (int at = 0; at < total && !check::failures(); at += DFT_SLOW ? 3 : 1) {
    for (Fault fault : {kDieBefore, kDieHalfway, kDieAfter}) {
      Scratch dir;
      Plan* plan = make_plan(at, fault);
      pid_t child = fork();
      if (child == 0) {
        workload(plan, dir, compress, rotating);
        exit(0);
      }
      int status;
      waitpid(child, &status, 0);
      if (WIFEXITED(status)) {  // beyond the last call
        CHECK_EQ(WEXITSTATUS(status), 0);
        total = at;
      } else {
        CHECK_EQ(WTERMSIG(status), SIGKILL);
        recover_directory(dir.path());
      }
      check_whole(dir, compress, plan->recorded.load(), false);
      if (check::failures()) fprintf(stderr, "  at call %d, fault %d\n", at, fault);
      munmap(plan, sizeof(Plan));
      if (check::failures() || total == at) break;
    }
  }
  CHECK(total > 8 && total < 1000);
}

TEST(death_at_every_step_gzip) { die_everywhere(true, false); }
TEST(death_at_every_step_plain) { die_everywhere(false, false); }
TEST(death_at_every_step_gzip_rotating) { die_everywhere(true, true); }
TEST(death_at_every_step_plain_rotating) { die_everywhere(false, true); }

// Full for a while, then there is room again: all of it is in the file in the end.
static void full_for_a_while(bool compress, bool rotating) {
  for (int refusals : {1, 2, 5}) {
    for (int at = 0; at < 24 && !check::failures(); at += DFT_SLOW ? 3 : 1) {
      Scratch dir;
      Plan* plan = make_plan(at, kFull, refusals);
      pid_t child = fork();
      if (child == 0) {
        workload(plan, dir, compress, rotating);
        exit(0);
      }
      int status;
      waitpid(child, &status, 0);
      CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
      recover_directory(dir.path());  // the refusal may have met the very last record
      check_whole(dir, compress, plan->recorded.load(), true);
      if (check::failures()) fprintf(stderr, "  refused %d times from call %d\n", refusals, at);
      munmap(plan, sizeof(Plan));
    }
  }
}

TEST(full_for_a_while_gzip) { full_for_a_while(true, false); }
TEST(full_for_a_while_plain) { full_for_a_while(false, false); }
TEST(full_for_a_while_gzip_rotating) { full_for_a_while(true, true); }
TEST(full_for_a_while_plain_rotating) { full_for_a_while(false, true); }

TEST(killed_while_the_disk_is_full) {
  for (bool compress : {true, false}) {
    for (int at = 0; at < 12 && !check::failures(); ++at) {
      Scratch dir;
      Plan* plan = make_plan(at, kFull, 1000000);
      pid_t child = fork();
      if (child == 0) {
        Settings s = small_settings(dir, compress);
        s.flush_ms = 600000;
        s.member_size = 3000;
        configure(s);
        start_session(dir / "run", "app");
        g_plan = plan;
        for (int64_t n = 0; n < 60; ++n) {
          record(kEvent, n, payload(n));
          plan->recorded.store(n + 1);
          if (n % 7 == 0) {
            bool refusing = plan->calls.load() > at;
            if (flush_session(60000) && refusing) exit(3);  // it said what is not so
          }
        }
        die();
      }
      int status;
      waitpid(child, &status, 0);
      CHECK(WIFSIGNALED(status));
      CHECK_EQ(recover_directory(dir.path()).size(), 1u);
      check_whole(dir, compress, plan->recorded.load(), true);
      if (check::failures()) fprintf(stderr, "  full from call %d, compress %d\n", at, compress);
      munmap(plan, sizeof(Plan));
    }
  }
}

TEST_MAIN
