// What is read of the machine: from fixtures of hosts that are not this one, and by whom.
#include <sys/stat.h>

#include <fstream>

#include "check.hpp"
#include "record/machine.hpp"
#include "recording.hpp"
#include "session/counters.hpp"

using namespace dft;

static const uint32_t kEvent = intern("event", "test");

// Writes a file below `root`, with the directories it needs.
static void put(const Scratch& root, const std::string& path, const std::string& text) {
  std::string full = root / path;
  for (size_t at = root.path().size(); (at = full.find('/', at + 1)) != full.npos;)
    mkdir(full.substr(0, at).c_str(), 0755);
  std::ofstream(full) << text;
}

static std::string args_of(const std::vector<Counter>& counters, const std::string& name) {
  for (const Counter& c : counters)
    if (c.name == name) return c.args;
  return "";
}

static bool has(const std::string& args, const std::string& pair) {
  return (args + ",").find("," + pair + ",") != std::string::npos;
}

TEST(this_process) {
  Machine machine;
  std::vector<Counter> counters;
  machine.sample_process(&counters);
  CHECK(args_of(counters, "cpu").find("\"waited_us\":") != std::string::npos);
  CHECK(has(args_of(counters, "cpu"), "\"threads\":1") || DFT_ASAN || DFT_TSAN);
  CHECK(args_of(counters, "memory").find("\"rss\":") != std::string::npos);
  CHECK(args_of(counters, "io").find("\"read_bytes\":") != std::string::npos);
}

TEST(no_proc_at_all) {
  Scratch root;
  Machine machine(root.path());
  std::vector<Counter> counters;
  machine.sample_process(&counters);
  machine.sample_host(&counters);
  CHECK(!machine.cgroup().find());
  CHECK(!machine.cgroup().sample(&counters));
  // The kernel tells a process itself about its time.
  CHECK(args_of(counters, "cpu").find("\"user_us\":") != std::string::npos);
  CHECK(args_of(counters, "cpu").find("waited_us") == std::string::npos);
  CHECK_EQ(args_of(counters, "host.cpu"), "");
  auto bit = [](Source s) { return 1u << int(s); };
  CHECK_EQ(machine.missing(), bit(Source::kProc) | bit(Source::kSchedule) | bit(Source::kIo) | bit(Source::kPressure));
}

TEST(host) {
  Scratch root;
  put(root, "proc/stat", "cpu  100 20 30 400 50 6 7 8 0 0\ncpu0 1 2 3\nintr 5 0 0\nprocs_running 9\nprocs_blocked 0\n");
  put(root, "proc/meminfo",
      "MemTotal: 1000 kB\nMemAvailable: 300 kB\nCached: 200 kB\nSwapCached: 7 kB\nDirty: 1 kB\nSwapTotal: 100 kB\n"
      "SwapFree: 40 kB\n");
  put(root, "proc/vmstat", "pswpin 2\npswpout 3\nworkingset_refault_anon 9\nworkingset_refault_file 4\n");
  put(root, "proc/diskstats",
      "   7       0 loop0 9 9 9 9 9 9 9 9 0 9 9\n"
      " 254       0 vda 10 0 8 1 20 0 16 1 0 70 1 0 0 0 0 0 0\n"
      " 254       1 vda1 10 0 8 1 20 0 16 1 0 70 1 0 0 0 0 0 0\n"
      " 259       0 nvme0n1 10 0 2 1 20 0 4 1 0 90 1 0 0 0 0 0 0\n"
      " 259       1 nvme0n1p1 10 0 2 1 20 0 4 1 0 90 1 0 0 0 0 0 0\n"
      " 253       0 dm-0 10 0 2 1 20 0 4 1 0 90 1 0 0 0 0 0 0\n");
  put(root, "proc/net/dev",
      "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes\n    lo:    3193 29 0 0 0 0 0 0 3193 29 0 0 0 0 0 0\n"
      "  eth0: 100 2 0 0 0 0 0 0 50 1 0 0 0 0 0 0\n  eth1:1000 2 0 0 0 0 0 0 500 1 0 0 0 0 0 0\n");
  put(root, "proc/pressure/cpu", "some avg10=1.00 avg60=0 avg300=0 total=11\nfull avg10=0 avg60=0 avg300=0 total=0\n");
  put(root, "proc/pressure/memory", "some avg10=0 avg60=0 avg300=0 total=22\nfull avg10=0 avg60=0 avg300=0 total=21\n");
  put(root, "proc/pressure/io", "some avg10=0 avg60=0 avg300=0 total=33\nfull avg10=0 avg60=0 avg300=0 total=31\n");
  Machine machine(root.path());
  std::vector<Counter> counters;
  machine.sample_host(&counters);
  int64_t tick = 1000000 / sysconf(_SC_CLK_TCK), page = sysconf(_SC_PAGESIZE);
  std::string cpu = args_of(counters, "host.cpu"), memory = args_of(counters, "host.memory");
  CHECK(has(cpu, "\"user_us\":" + std::to_string(120 * tick)));
  CHECK(has(cpu, "\"system_us\":" + std::to_string(43 * tick)));
  CHECK(has(cpu, "\"idle_us\":" + std::to_string(400 * tick)));
  CHECK(has(cpu, "\"stolen_us\":" + std::to_string(8 * tick)));
  CHECK(has(cpu, "\"runnable\":9"));
  CHECK(has(memory, "\"total\":1024000") && has(memory, "\"available\":307200") &&
        has(memory, "\"page_cache\":204800"));
  CHECK(has(memory, "\"swap_used\":61440") && has(memory, "\"swapped_in\":" + std::to_string(2 * page)));
  CHECK(has(memory, "\"cache_refaults\":" + std::to_string(4 * page)));
  CHECK_EQ(args_of(counters, "host.disk"), ",\"read_bytes\":5120,\"written_bytes\":10240,\"busy_us\":90000");
  CHECK_EQ(args_of(counters, "host.network"), ",\"received_bytes\":1100,\"sent_bytes\":550");
  CHECK(has(args_of(counters, "host.pressure"), "\"memory_full_us\":21"));
  CHECK_EQ(machine.missing(), 0u);
}

TEST(cgroup_v2) {
  Scratch root;
  put(root, "proc/self/cgroup", "0::/job/step\n");
  put(root, "proc/self/mountinfo",
      "30 23 0:26 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
  // The limit of the memory is the parent's, the one of the CPU is its own.
  put(root, "sys/fs/cgroup/job/memory.max", "2000000\n");
  put(root, "sys/fs/cgroup/job/memory.current", "1500000\n");
  put(root, "sys/fs/cgroup/job/memory.stat", "anon 900000\nfile 600000\nworkingset_refault_file 3\n");
  put(root, "sys/fs/cgroup/job/memory.events", "low 0\nhigh 0\nmax 12\noom 1\noom_kill 1\n");
  put(root, "sys/fs/cgroup/job/memory.pressure",
      "some avg10=0 avg60=0 avg300=0 total=77\nfull avg10=0 avg60=0 avg300=0 total=66\n");
  put(root, "sys/fs/cgroup/job/cpu.max", "max 100000\n");
  put(root, "sys/fs/cgroup/job/step/memory.max", "max\n");
  put(root, "sys/fs/cgroup/job/step/cpu.max", "150000 100000\n");
  put(root, "sys/fs/cgroup/job/step/cpu.stat", "usage_usec 5\nnr_periods 10\nnr_throttled 4\nthrottled_usec 123456\n");
  Machine machine(root.path());
  REQUIRE(machine.cgroup().find());
  std::vector<Counter> counters;
  CHECK(machine.cgroup().sample(&counters));
  std::string args = args_of(counters, "cgroup");
  CHECK(has(args, "\"cpu_limit_milli\":1500") && has(args, "\"throttled_periods\":4"));
  CHECK(has(args, "\"throttled_us\":123456") && has(args, "\"memory_limit\":2000000"));
  CHECK(has(args, "\"memory_used\":1500000") && has(args, "\"anonymous\":900000") && has(args, "\"limit_hits\":12"));
  CHECK(has(args, "\"oom_kills\":1") && has(args, "\"memory_full_us\":66"));
}

TEST(cgroup_v1_in_a_container) {
  Scratch root;
  // The container sees its group as the root of the mount; /proc/self/cgroup has the path on the host.
  put(root, "proc/self/cgroup", "4:memory:/docker/abc\n3:cpuset:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n");
  put(root, "proc/self/mountinfo",
      "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro,relatime - cgroup cgroup rw,cpu,cpuacct\n"
      "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro,relatime - cgroup cgroup rw,memory\n"
      "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n");
  put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "4096000\n");
  put(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "4000000\n");
  put(root, "sys/fs/cgroup/memory/memory.failcnt", "8\n");
  put(root, "sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
  put(root, "sys/fs/cgroup/memory/memory.stat", "cache 1\nrss 2\ntotal_cache 30\ntotal_rss 40\n");
  put(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n");
  put(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  put(root, "sys/fs/cgroup/cpu,cpuacct/cpu.stat", "nr_periods 10\nnr_throttled 5\nthrottled_time 2000000\n");
  Machine machine(root.path());
  REQUIRE(machine.cgroup().find());
  std::vector<Counter> counters;
  CHECK(machine.cgroup().sample(&counters));
  std::string args = args_of(counters, "cgroup");
  CHECK(has(args, "\"cpu_limit_milli\":500") && has(args, "\"throttled_us\":2000"));
  CHECK(has(args, "\"memory_limit\":4096000") && has(args, "\"limit_hits\":8") && has(args, "\"oom_kills\":2"));
  CHECK(has(args, "\"page_cache\":30") && has(args, "\"anonymous\":40"));
}

TEST(no_limits_are_not_numbers) {
  Scratch root;
  put(root, "proc/self/cgroup", "4:memory:/\n1:cpu:/\n0::/\n");
  put(root, "proc/self/mountinfo",
      "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup "
      "rw,memory\n");
  put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n");
  put(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  put(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  Machine machine(root.path());
  REQUIRE(machine.cgroup().find());
  std::vector<Counter> counters;
  CHECK(machine.cgroup().sample(&counters));
  CHECK_EQ(args_of(counters, "cgroup").find("limit"), std::string::npos);
}

TEST(one_holder_at_a_time) {
  constexpr uint64_t kSecond = 1000000000, kSilence = 3 * kSecond;
  std::string name = "test " + std::to_string(getpid());
  Lease a(name, "a"), b(name, "b"), other(name + " other", "b");
  uint64_t now = monotonic_ns();
  CHECK(a.take(now, kSilence));
  CHECK(!b.take(now, kSilence));
  CHECK(other.take(now, kSilence));
  CHECK(a.take(now + 2 * kSecond, kSilence));
  CHECK(!b.take(now + 4 * kSecond, kSilence));  // its last use counts
  CHECK(b.take(now + 6 * kSecond, kSilence));   // a was silent
  CHECK(!a.take(now + 7 * kSecond, kSilence));
  b.release();
  CHECK(a.take(now + 7 * kSecond, kSilence));
  a.release();
  other.release();
}

TEST(a_session_is_sampled_by_its_writer) {
  Scratch dir;
  Settings s = small_settings(dir);
  s.counter_ms = 20;
  configure(s);
  REQUIRE(start_session(dir / "run", "app"));
  record(kEvent, 0);
  // Nothing else is recorded: the writer wakes up for its samples, and not for more.
  for (int i = 0; i < 500 && session_stats().members < 10; ++i) usleep(20000);
  finish_session();
  Trace trace = read_trace(dir / "run.pfw.gz");
  CHECK(trace.closed);
  size_t samples = trace.named("cpu").size();
  CHECK(samples >= 5);
  CHECK_EQ(trace.named("memory").size(), samples);
  CHECK_EQ(trace.named("event").size(), 1u);
}

TEST(a_short_session_has_no_samples) {
  Scratch dir;
  Settings s = small_settings(dir);
  s.counter_ms = 3600000;
  configure(s);
  REQUIRE(start_session(dir / "run", "app"));
  record(kEvent, 0);
  usleep(150000);
  finish_session();
  Trace trace = read_trace(dir / "run.pfw.gz");
  CHECK_EQ(trace.named("cpu").size(), 0u);
}

TEST_MAIN
