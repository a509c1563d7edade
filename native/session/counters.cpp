#include "session/counters.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <ctime>

#include "format/arguments.hpp"
#include "format/md5.hpp"
#include "record/clock.hpp"
#include "record/descriptors.hpp"
#include "record/ring_place.hpp"

namespace dft {
namespace {

constexpr uint64_t kMillisecond = 1000000;
constexpr uint64_t kUsualInterval = 1000;  // ms
// A process that ends before this does not pay for a sample.
constexpr uint64_t kShortLife = 100;  // ms
// At the usual interval, sampling takes at most one part in so many of a core: 0.05 % in all.
constexpr uint64_t kProcessShare = 5000, kHostShare = 5000, kDeviceShare = 10000;
constexpr uint64_t kLongestPause = 30;  // intervals

std::atomic<uint32_t> g_missing{0};

struct Slot {
  std::atomic<uint64_t> key, holder, used_ns;
};

constexpr size_t kSlots = 128;
constexpr size_t kTableSize = 4096;
struct LeaseTable {
  Slot slots[kSlots];
  std::atomic<uint64_t> changing_since_ns;  // 0: nobody takes one over
};
static_assert(sizeof(LeaseTable) <= kTableSize);

// Shared by the processes of this user on this host; null where there is no place for it.
LeaseTable* map_lease_table() {
  std::string directory = own_ring_directory(true);
  if (directory.empty()) return nullptr;
  std::string path = directory + "/leases";
  int fd = open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return nullptr;
  struct stat st;
  // Its memory is reserved: a full file system must not end the program when it is written to.
  bool usable = fstat(fd, &st) == 0 && is_private_file(st) && posix_fallocate(fd, 0, kTableSize) == 0;
  void* at = usable ? mmap(nullptr, kTableSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  close(fd);
  return at == MAP_FAILED ? nullptr : static_cast<LeaseTable*>(at);
}

// Mapped once: children of a fork use the same. Not a local static that is made on first use: a fork meanwhile would
// leave the child one that is being made forever.
LeaseTable* lease_table() {
  static std::atomic<LeaseTable*> table{nullptr};
  static std::atomic<bool> tried{false};
  if (!tried.load()) {
    LeaseTable* made = map_lease_table();
    LeaseTable* none = nullptr;
    if (made && !table.compare_exchange_strong(none, made)) munmap(made, kTableSize);
    tried.store(true);
  }
  return table.load();
}

// One process at a time; a process that was killed meanwhile does not hold up the others for long.
class TableLock {
 public:
  TableLock(LeaseTable* table, uint64_t now) : word_(table->changing_since_ns), mine_(now | 1) {
    constexpr int kTries = 20;
    for (int i = 0; i < kTries && !held_; ++i) {
      uint64_t since = word_.load();
      bool free = since == 0 || now > since + 1000 * kMillisecond || since > now + 1000 * kMillisecond;
      held_ = free && word_.compare_exchange_strong(since, mine_);
      if (!held_) usleep(50);
    }
  }
  ~TableLock() {
    if (held_) word_.compare_exchange_strong(mine_, 0);
  }
  TableLock(const TableLock&) = delete;
  TableLock& operator=(const TableLock&) = delete;
  bool held() const { return held_; }

 private:
  std::atomic<uint64_t>& word_;
  uint64_t mine_;
  bool held_ = false;
};

uint64_t number_of(const std::string& text) { return strtoull(short_hash(text).c_str(), nullptr, 16) | 1; }

}  // namespace

Lease::Lease(const std::string& name, const std::string& holder) : key_(number_of(name)), holder_(number_of(holder)) {}

bool Lease::take(uint64_t now, uint64_t silence_ns) {
  LeaseTable* table = lease_table();
  if (!table) return false;
  auto slot = [&](size_t i) { return &table->slots[(key_ + i) % kSlots]; };
  auto with_the_key = [&]() -> Slot* {
    for (size_t i = 0; i < kSlots; ++i)
      if (slot(i)->key.load() == key_) return slot(i);
    return nullptr;
  };
  auto silent = [&](const Slot& s) {
    uint64_t used = s.used_ns.load();
    return used > now + silence_ns || now > used + silence_ns;
  };
  Slot* mine = with_the_key();
  if (!mine || mine->holder.load() != holder_) {
    if (mine && !silent(*mine)) return false;
    TableLock lock(table, now);
    if (!lock.held()) return false;  // there will be another sample
    mine = with_the_key();
    for (size_t i = 0; i < kSlots && !mine; ++i)
      if (silent(*slot(i))) mine = slot(i);
    if (!mine || !silent(*mine)) return false;
    mine->key.store(key_);
    mine->holder.store(holder_);
  }
  mine->used_ns.store(now);
  return true;
}

void Lease::release() {
  LeaseTable* table = lease_table();
  for (size_t i = 0; table && i < kSlots; ++i) {
    Slot& s = table->slots[i];
    if (s.key.load() == key_ && s.holder.load() == holder_) s.used_ns.store(0);
  }
}

Counters::Counters(Options options, uint64_t now)
    : options_(std::move(options)),
      host_("host " + options_.host + " " + options_.run, options_.session),
      cgroup_("", options_.session),
      gpu_("gpu " + options_.host + " " + options_.run, options_.session) {
  next_ns_ = now + std::min(options_.interval_ms, kShortLife) * kMillisecond;
}

Counters::~Counters() {
  host_.release();
  cgroup_.release();
  gpu_.release();
}

uint64_t Counters::wait_ms(uint64_t now) const {
  return next_ns_ > now ? (next_ns_ - now + kMillisecond - 1) / kMillisecond : 1;
}

// So long that what it cost stays within its share, if the user has not asked for more than usual.
uint64_t Counters::pause_ns(uint64_t cost_ns, uint64_t share) const {
  uint64_t interval = options_.interval_ms * kMillisecond;
  if (options_.interval_ms < kUsualInterval) return interval;
  return std::clamp(cost_ns * share, interval, interval * kLongestPause);
}

// The writer looks once per interval, never exactly on time.
uint64_t Counters::slack_ns() const { return options_.interval_ms * kMillisecond / 2; }

void Counters::begin() {
  begun_ = true;
  in_cgroup_ = machine_.cgroup().find();
  if (!in_cgroup_) machine_.note_missing(Source::kCgroup);
  cgroup_ = Lease("cgroup " + options_.host + " " + options_.run + machine_.cgroup().identity(), options_.session);
}

bool Counters::chosen(Lease* lease, uint64_t now) const {
  uint64_t silence = 3 * std::max(options_.interval_ms, kUsualInterval) * kMillisecond;
  return lease_table() ? lease->take(now, silence) : options_.first_on_host;
}

void Counters::read_process(uint64_t now, std::vector<Counter>* out) {
  uint64_t before = thread_cpu_ns();
  machine_.sample_process(out);
  next_ns_ = now + pause_ns(thread_cpu_ns() - before, kProcessShare);
}

void Counters::read_host(uint64_t now, std::vector<Counter>* out, bool last) {
  bool host = chosen(&host_, now), group = in_cgroup_ && chosen(&cgroup_, now);  // kept while this process pauses
  if (now < next_host_ns_) {
    // What the kernel killed for want of memory is known only now.
    if (last && group) machine_.cgroup().sample(out);
    return;
  }
  uint64_t before = thread_cpu_ns();
  if (host) machine_.sample_host(out);
  if (group) machine_.cgroup().sample(out);
  next_host_ns_ = now + pause_ns(thread_cpu_ns() - before, kHostShare) - slack_ns();
}

void Counters::read_devices(uint64_t now, GpuThread& gpus, std::vector<Counter>* out) {
  // A forked child must not use the parent's connection to the driver.
  if (options_.forked || !nvml_.driver_loaded() || !chosen(&gpu_, now) || now < next_device_ns_) return;
  GpuThread::Answer answer;
  if (has_own_descriptors()) {
    if (!gpus.running()) return gpus.want();
    gpus.ask(&answer);
  } else {
    nvml_.load();
    uint64_t before = thread_cpu_ns();
    nvml_.sample(&answer.counters);
    answer.cost_ns = thread_cpu_ns() - before;
  }
  for (Counter& counter : answer.counters) out->push_back(std::move(counter));
  next_device_ns_ = now + pause_ns(answer.cost_ns, kDeviceShare) - slack_ns();
}

std::vector<Counters::Sample> Counters::take(uint64_t now, GpuThread& gpus, bool last) {
  std::vector<Sample> out;
  if (last && !written_) return out;
  bool first = !begun_;
  if (first) begin();
  if (!first && !written_) {
    out = std::move(first_);
    first_.clear();
    written_ = true;
  }
  Sample sample{now, {}};
  read_process(now, &sample.counters);
  read_host(now, &sample.counters, last);
  read_devices(now, gpus, &sample.counters);
  g_missing.store(machine_.missing(), std::memory_order_relaxed);
  (first ? first_ : out).push_back(std::move(sample));
  return out;
}

void append_missing_counters(std::string* args) {
  std::string names;
  uint32_t missing = g_missing.load(std::memory_order_relaxed);
  for (int i = 0; i < int(Source::kCount); ++i) {
    if (!(missing >> i & 1)) continue;
    if (!names.empty()) names += ' ';
    names += kSourceNames[i];
  }
  if (!names.empty()) append_arg(*args, "counters_missing", std::string_view(names));
}

}  // namespace dft
