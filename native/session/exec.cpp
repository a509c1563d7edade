// exec replaces the image of a process that is being traced.
#include <mutex>

#include "session/session.hpp"
#include "session/session_state.hpp"
#include "session/threads.hpp"
#include "session/writer_thread.hpp"

namespace dft {

void before_exec() {
  Session* s = state().session;
  if (!in_session_process() || !s->recording) return;
  if (s->thread_running.load()) flush_session(5000);
  auto slots = slots_now(s);
  std::lock_guard lock(s->writer_mutex);
  if (is_worth_a_trace(s, slots)) s->writer.finish(slots, 0);
  // As at the end of the process: without a trace no reader would ever recover the ring.
  if (s->writer.complete() || !s->writer.opened()) s->rings.unlink_file();
}

void after_failed_exec() {
  Session* s = state().session;
  if (!in_session_process() || !s->recording) return;
  std::lock_guard lock(s->writer_mutex);
  s->writer.reopen();
}

}  // namespace dft
