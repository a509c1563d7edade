// fork(): the child records into files of its own and never touches what belongs to the parent.
#include <pthread.h>

#include <new>

#include "intercept/patcher.hpp"
#include "names.hpp"
#include "session_state.hpp"

namespace dft {
namespace {

void before_fork() {
  state().mutex.lock();
  names_mutex().lock();
  state().complaints_mutex.lock();
  lock_patcher();
}

void in_parent() {
  unlock_patcher();
  state().complaints_mutex.unlock();
  names_mutex().unlock();
  state().mutex.unlock();
}

void in_child() {
  // All were locked by the thread that lives on here, so all can be unlocked.
  unlock_patcher();
  state().complaints_mutex.unlock();
  names_mutex().unlock();
  g_generation.store(0);
  rearm_in_child();
  state().mutex.unlock();
}

}  // namespace

void install_fork_handlers() { pthread_atfork(before_fork, in_parent, in_child); }

}  // namespace dft
