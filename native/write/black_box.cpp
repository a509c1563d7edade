#include "write/black_box.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "record/descriptors.hpp"

namespace dft {
namespace {

constexpr size_t kRecent[] = {8, 10, 32};  // steps: short windows for a sudden change, one for times that vary
constexpr size_t kBefore = 64, kFewestBefore = 24;
constexpr double kSurprise = 4.0;  // standard deviations of the rank sum; about 1 in 30,000 if nothing has changed
constexpr double kWorth = 1.05;    // times the median before: less is not worth keeping
constexpr double kLonger = 1.5;    // a single step, compared with the longest before it
constexpr uint64_t kLookNs = 1'000'000'000;

std::atomic<const char*> g_asked{nullptr};

int64_t median(int64_t* first, size_t n) {
  std::nth_element(first, first + n / 2, first + n);
  return first[n / 2];
}

}  // namespace

bool StepWatch::slower_than_before(size_t recent) const {
  size_t known = std::min<uint64_t>(count_, kKept);
  if (known < recent + kFewestBefore) return false;
  size_t before = std::min(kBefore, known - recent);
  double wins = 0;
  for (size_t i = 0; i < recent; ++i)
    for (size_t j = 0; j < before; ++j) {
      int64_t now = at(i), then = at(recent + j);
      wins += now > then ? 1.0 : now == then ? 0.5 : 0.0;
    }
  double n = double(recent), m = double(before);
  // Squares instead of a root: short processes pay for every library, and nothing else here needs libm.
  double excess = wins / (n * m) - 0.5;
  if (excess < 0 || excess * excess < kSurprise * kSurprise * (n + m + 1) / (12 * n * m)) return false;
  int64_t now[kBefore], then[kBefore];
  for (size_t i = 0; i < recent; ++i) now[i] = at(i);
  for (size_t j = 0; j < before; ++j) then[j] = at(recent + j);
  return double(median(now, recent)) > kWorth * double(median(then, before));
}

bool StepWatch::add(int64_t wall_us) {
  size_t known = std::min<uint64_t>(count_, kKept);
  int64_t longest = 0;
  for (size_t i = 0; i < known; ++i) longest = std::max(longest, at(i));
  steps_[count_++ % kKept] = wall_us;
  if (known >= kFewestBefore && double(wall_us) > kLonger * double(longest)) return true;
  if (!std::any_of(std::begin(kRecent), std::end(kRecent), [&](size_t n) { return slower_than_before(n); }))
    return false;
  count_ = 0;
  return true;
}

const char* BlackBox::see(const StepRow& row) {
  if (row.flags & kRowBetween) return nullptr;
  bool learns = row.flags & kRowLearns;
  if (learns && !learns_) watch_ = {};
  learns_ |= learns;
  int64_t step = row.step >= 0 ? row.step : steps_;  // a program need not number them
  ++steps_;
  bool again = step < last_step_;  // one that starts again at 0 in each epoch may never reach the first one
  last_step_ = step;
  if (pending_ && (step + 1 >= trigger_.first || again)) {
    pending_ = !again && step < trigger_.first + trigger_.steps;
    return "trigger";
  }
  return learns == learns_ && watch_.add(row.wall_us) ? "slow_step" : nullptr;
}

const char* BlackBox::look(const std::string& folder, uint64_t now_ns) {
  if (now_ns - looked_ns_ < kLookNs) return nullptr;
  looked_ns_ = now_ns;
  std::string path = folder + "/" + Trigger::kName;
  struct stat st;
  // Only its owner may say what this process keeps.
  if (lstat(path.c_str(), &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid()) return nullptr;
  int64_t changed = int64_t(st.st_mtim.tv_sec) * 1'000'000'000 + st.st_mtim.tv_nsec;
  if (changed == changed_ns_ || !read_trigger(path)) return nullptr;
  changed_ns_ = changed;
  pending_ = steps_ > 0 && last_step_ < trigger_.first + trigger_.steps;
  // A process without steps, a loader's for example, keeps what it does now; so does one that has passed them already.
  return pending_ ? nullptr : "trigger";
}

bool BlackBox::read_trigger(const std::string& path) {
  int fd = open_high_fd(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  char text[128];
  ssize_t n = pread(fd, text, sizeof text - 1, 0);
  close(fd);
  if (n <= 0) return false;
  text[n] = 0;
  unsigned long long id;
  long long first, steps;
  if (sscanf(text, "dftracer-trigger %llu %lld %lld", &id, &first, &steps) != 3 || id == trigger_.id) return false;
  trigger_ = {id, first, steps};
  return true;
}

void ask_to_keep(const char* reason) { g_asked.store(reason, std::memory_order_relaxed); }

const char* asked_to_keep() {
  return g_asked.load(std::memory_order_relaxed) ? g_asked.exchange(nullptr, std::memory_order_relaxed) : nullptr;
}

}  // namespace dft
