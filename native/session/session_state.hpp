// The process-wide state behind session.hpp; private to the engine.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "intercept/io_record.hpp"
#include "session/counters.hpp"
#include "session/run.hpp"
#include "session/session.hpp"
#include "write/writer.hpp"

namespace dft {

// While a thread holds it, or waits for it, the calls of a signal handler in that thread are ignored: they would
// deadlock here.
class QuietMutex {
 public:
  void lock() {
    tls_io_off += kLocked;
    mutex_.lock();
  }
  bool try_lock() {
    tls_io_off += kLocked;
    if (mutex_.try_lock()) return true;
    tls_io_off -= kLocked;
    return false;
  }
  void unlock() {
    mutex_.unlock();
    tls_io_off -= kLocked;
  }

 private:
  std::mutex mutex_;
};

struct Session {
  explicit Session(const Settings& s) : settings(s), writer(settings, rings, clock, lines) {}

  Settings settings;
  pid_t pid = 0;
  std::string hex, host, host_hash;
  std::string role;  // the last part of a generated name
  Run run;
  std::string requested_path, fallback_path;  // the requested file, and the one used if that is taken
  std::string root_stem;                      // of the process whose fork we are

  RingFile rings;
  ClockMap clock;
  LineFormatter lines;
  Writer writer;
  std::optional<Counters> counters;  // of the writer's thread
  uint64_t first_id = 0;             // of the program's first record
  GpuThread gpus;
  std::mutex writer_mutex;  // the writer object is used by its thread, by exec and by rename; held while disks are slow
  // What others may read at any time, without waiting for a disk.
  struct Shown {
    bool opened = false;
    std::string path;
    uint64_t bytes = 0, members = 0;
  } shown;
  std::mutex shown_mutex;

  std::vector<RingSlot*> slots;  // the writer makes sure there is room for more: see new_slot()
  ThreadState* threads = nullptr;
  int released = 0;  // rings whose threads have ended since the last flush on their account
  std::atomic<bool> recording{false};
  std::atomic<uint64_t> dropped_before_begin{0};
  bool failed = false;
  // Reported by the writer, which may allocate: a thread got no ring, or one that does not outlive the process.
  std::atomic<bool> no_ring{false}, private_ring{false};
  std::atomic<uint64_t> no_memory_until{0};  // ns: none is asked for before
  RingHeader blind{};  // of threads that got none: it has no room, so that each of their events is dropped and counted
  bool abandoned = false;

  pthread_t thread{};
  std::atomic<pid_t> thread_id{0};
  std::atomic<bool> thread_running{false};
  bool thread_leaving = false;  // asked to leave, and not yet gone
  bool had_thread = false;
  bool begun_for_io = false;
  std::atomic<uint64_t> thread_due_ns{0};
  std::atomic<uint64_t> written_at_pause{0};  // by the thread that made the writer pause
  std::atomic<bool> writer_begun{false};
  bool woken_early = false;
  std::atomic<uint32_t> wake{0}, sleeping{0}, stop{0}, flush_wanted{0}, flush_done{0};
  std::atomic<bool> written{true};  // the last try succeeded
  std::atomic<int> waiting{0};      // threads in flush_session()

  FileHeader* header() const { return rings.header(); }
};

struct State {
  QuietMutex mutex;
  std::atomic<Session*> session{nullptr};
  std::atomic<pid_t> session_pid{0};
  std::string last_path;
  Run run;  // of this process, once it is known; children of a fork keep it
  // Held by the writer's thread while it works, let go while it sleeps.
  std::mutex writer_at_work;
  void (*free_contexts)(void*) = nullptr;
  std::atomic<int> exit_status{-1};  // -1: not known yet
};

State& state();
// The arguments of the last record that say how the process ended.
void append_ending(std::string* args);
void install_fork_handlers();
// exec is about to replace this image: write everything to the file, close it, and undo that if exec fails.
void before_exec();
void after_failed_exec();
// full_ring.cpp. What engine.hpp calls make_room(), take_large_payload() and count_lost().
bool make_room_in_ring(ThreadState* t, uint32_t size);
char* wait_for_large_payload(ThreadState* t, size_t size);
void count_dropped(Drop why);
// The ring is nearly full: a short pause now rather than a long one or a lost event later.
void ease_off(ThreadState* t);
// In the child of a fork: its own session, which writes nothing until it records something.
void rearm_in_child();
// The same if recording could hang the child: nothing is recorded or allocated.
void leave_session_in_child();

}  // namespace dft
