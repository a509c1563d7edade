#include "session/gpu_thread.hpp"

#include <unistd.h>

#include <new>

#include "intercept/io_record.hpp"
#include "record/clock.hpp"
#include "session/futex.hpp"
#include "session/quiet_thread.hpp"

namespace dft {
namespace {

constexpr uint64_t kAnswerMs = 200, kStopMs = 1000;

}  // namespace

struct GpuThread::Shared {
  std::atomic<uint32_t> asked{0}, answered{0}, stop{0};
  std::atomic<pid_t> thread_id{0};
  std::mutex mutex;
  Answer answer;
  Nvml nvml;
};

void* GpuThread::run(void* self) {
  auto* s = static_cast<Shared*>(self);
  pthread_setname_np(pthread_self(), "dftracer-gpu");
  tls_io_off = 1;
  s->thread_id.store(pid_t(syscall(SYS_gettid)));
  while (!s->stop.load()) {
    uint32_t asked = s->asked.load();
    if (asked == s->answered.load()) {
      futex_wait(&s->asked, asked, 0);
      continue;
    }
    try {
      Answer answer;
      s->nvml.load();
      uint64_t before = thread_cpu_ns();
      s->nvml.sample(&answer.counters);
      answer.cost_ns = thread_cpu_ns() - before;
      std::lock_guard lock(s->mutex);
      s->answer = std::move(answer);
    } catch (const std::bad_alloc&) {
      // The next one has another chance.
    }
    s->answered.store(asked);
    futex_wake(&s->answered, 1);
  }
  return nullptr;
}

void GpuThread::start() {
  wanted_ = false;
  if (running_) return;
  if (!shared_) shared_ = new Shared;
  shared_->stop.store(0);
  running_ = start_quiet_thread(run, shared_, Joined::kLater, &thread_) == 0;
}

void GpuThread::stop() {
  if (!running_) return;
  shared_->stop.store(1);
  shared_->asked.fetch_add(1);
  futex_wake(&shared_->asked, 1);
  if (!join_within(thread_, kStopMs, &shared_->thread_id)) {
    pthread_detach(thread_);
    shared_ = nullptr;
  }
  running_ = false;
}

bool GpuThread::ask(Answer* out) {
  Shared* s = shared_;
  bool waiting = s->asked.load() != s->answered.load();  // for an answer that was too late
  if (!waiting) {
    s->asked.fetch_add(1);
    futex_wake(&s->asked, 1);
  }
  uint32_t seen = s->answered.load();
  if (s->asked.load() != seen) futex_wait(&s->answered, seen, kAnswerMs);
  if (s->asked.load() != s->answered.load()) return false;
  std::lock_guard lock(s->mutex);
  *out = std::move(s->answer);
  s->answer = {};
  return true;
}

}  // namespace dft
