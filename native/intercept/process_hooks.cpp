// Processes that start and end: fork, posix_spawn, exec, wait.
#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "intercept/hook_table.hpp"
#include "intercept/process_calls.hpp"

namespace dft {
namespace {

// A trace is not begun for a process event alone: a shell would leave one for every command.
bool recording() { return g_session_calls.recording() && io_active(); }

}  // namespace

void record_call(Call call, uint64_t start, const Finished& done, int64_t ret, int error, const Values& values) {
  if (!g_io_on[int(call)] || !recording()) return;
  if (ThreadState* t = io_thread()) emit_io(t, call, 0, start, done.end(), true, ret, error, values);
}

namespace {

template <int S>
pid_t hook_fork() {
  auto* function = real<S, pid_t()>();
  if (!io_active()) return function();
  uint64_t start = call_starts();
  pid_t pid = function();
  if (pid == 0) return 0;
  Finished done;
  record_call(Call::fork_, start, done, pid, pid == -1 ? done.error() : 0, Values());
  return pid;
}

using Spawn = int(pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*, char* const*,
                  char* const*);

int spawned(Call call, Spawn* function, pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
            const posix_spawnattr_t* attributes, char* const* argv, char* const* envp) {
  if (!io_active()) return function(pid, path, actions, attributes, argv, envp);
  uint64_t start = call_starts();
  pid_t child = 0;
  int ret = function(&child, path, actions, attributes, argv, envp);
  if (pid && ret == 0) *pid = child;
  Finished done;
  record_call(call, start, done, ret, ret, Values(child));
  return ret;
}

template <int S>
int hook_posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                     const posix_spawnattr_t* attributes, char* const* argv, char* const* envp) {
  return spawned(Call::posix_spawn_, real<S, Spawn>(), pid, path, actions, attributes, argv, envp);
}

template <int S>
int hook_posix_spawnp(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                      const posix_spawnattr_t* attributes, char* const* argv, char* const* envp) {
  return spawned(Call::posix_spawnp_, real<S, Spawn>(), pid, path, actions, attributes, argv, envp);
}

template <typename Values_, typename... P, typename... A>
pid_t waited(Call call, int* status, Values_ values, pid_t (*function)(P...), A... args) {
  if (!io_active()) return function(args...);
  uint64_t start = call_starts();
  pid_t pid = function(args...);
  Finished done;
  Values all = values(status && pid > 0 ? *status : 0);
  record_call(call, start, done, pid, pid == -1 ? done.error() : 0, all);
  return pid;
}

template <int S>
pid_t hook_wait(int* status) {
  return waited(Call::wait_, status, [](int st) { return Values(st); }, real<S, pid_t(int*)>(), status);
}

template <int S>
pid_t hook_waitpid(pid_t pid, int* status, int options) {
  return waited(
      Call::waitpid_, status, [&](int st) { return Values(pid, options, st); }, real<S, pid_t(pid_t, int*, int)>(), pid,
      status, options);
}

template <int S>
pid_t hook_wait3(int* status, int options, rusage* usage) {
  return waited(
      Call::wait3_, status, [&](int st) { return Values(options, st); }, real<S, pid_t(int*, int, rusage*)>(), status,
      options, usage);
}

template <int S>
pid_t hook_wait4(pid_t pid, int* status, int options, rusage* usage) {
  return waited(
      Call::wait4_, status, [&](int st) { return Values(pid, options, st); },
      real<S, pid_t(pid_t, int*, int, rusage*)>(), pid, status, options, usage);
}

template <int S>
int hook_waitid(idtype_t type, id_t id, siginfo_t* info, int options) {
  auto* function = real<S, int(idtype_t, id_t, siginfo_t*, int)>();
  if (!io_active()) return function(type, id, info, options);
  uint64_t start = call_starts();
  int ret = function(type, id, info, options);
  Finished done;
  record_call(Call::waitid_, start, done, ret, ret == -1 ? done.error() : 0, Values(type, id, options));
  return ret;
}

}  // namespace

// An exec that succeeds never returns: it is recorded as it begins. One that fails says so in a second event.
void record_exec(const char* path, int error) {
  if (!recording() || !g_io_on[int(Call::execve_)]) return;
  uint64_t start = call_starts();
  Finished done;
  PathText text;
  File file = error == EFAULT ? File{} : file_of_path(AT_FDCWD, path, &text);
  ThreadState* t = io_thread();
  if (!t) return;
  if (file && first_in_trace(file, t->generation)) announce(t, file.hash, text.view());
  emit_io(t, Call::execve_, file.hash, start, done.end(), error != 0, -1, error, Values());
}

#define IO_HOOK_PROCESS ADD_HOOK
void add_process_hooks(std::vector<Hook>* out) {
#include "format/io_hooks.def"
  add_vfork_hook(out);
}

}  // namespace dft
