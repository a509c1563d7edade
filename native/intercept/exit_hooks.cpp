// The ends of a process that run no exit handlers, _exit and exec; and what a process with our thread could not do, or
// not survive.
#include <alloca.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "intercept/intercept.hpp"
#include "intercept/patcher.hpp"
#include "intercept/session_calls.hpp"

namespace dft {
namespace {

// A vfork child runs in its parent's memory: in_process() tells them apart by pid.
[[noreturn]] void hooked_exit(int status) {
  if (g_session_calls.in_process()) {
    g_session_calls.note_exit_status(status);
    g_session_calls.finish();
  }
  _exit(status);
}

template <typename Call>
int exec_after_flush(const char* path, Call call) {
  if (!g_session_calls.in_process()) return call();
  record_exec(path, 0);
  g_session_calls.before_exec();
  int rc = call();
  int error = errno;
  g_session_calls.after_failed_exec();
  record_exec(path, error);
  errno = error;
  return rc;
}

int hooked_execve(const char* path, char* const argv[], char* const envp[]) {
  return exec_after_flush(path, [&] { return execve(path, argv, envp); });
}

int hooked_execv(const char* path, char* const argv[]) {
  return exec_after_flush(path, [&] { return execv(path, argv); });
}

int hooked_execvp(const char* file, char* const argv[]) {
  return exec_after_flush(file, [&] { return execvp(file, argv); });
}

int hooked_execvpe(const char* file, char* const argv[], char* const envp[]) {
  return exec_after_flush(file, [&] { return execvpe(file, argv, envp); });
}

int hooked_fexecve(int fd, char* const argv[], char* const envp[]) {
  return exec_after_flush(nullptr, [&] { return fexecve(fd, argv, envp); });
}

// The list forms become the vector forms, on the stack: the child of a fork may not allocate.
#define LIST_TO_VECTOR(first, argv)                                               \
  va_list list;                                                                   \
  va_start(list, first);                                                          \
  int count = 1;                                                                  \
  while (va_arg(list, char*)) ++count;                                            \
  va_end(list);                                                                   \
  auto** argv = static_cast<char**>(alloca((size_t(count) + 1) * sizeof(char*))); \
  va_start(list, first);                                                          \
  argv[0] = const_cast<char*>(first);                                             \
  for (int i = 1; i <= count; ++i) argv[i] = va_arg(list, char*)

int hooked_execl(const char* path, const char* first, ...) {
  LIST_TO_VECTOR(first, argv);
  va_end(list);
  return hooked_execv(path, argv);
}

int hooked_execlp(const char* file, const char* first, ...) {
  LIST_TO_VECTOR(first, argv);
  va_end(list);
  return hooked_execvp(file, argv);
}

int hooked_execle(const char* path, const char* first, ...) {
  LIST_TO_VECTOR(first, argv);
  char* const* envp = va_arg(list, char* const*);
  va_end(list);
  return hooked_execve(path, argv, envp);
}

// A filter may end the process at any call it does not expect, and ours are not the program's: the trace ends here.
bool sets_filter(long operation) {
  return operation == SECCOMP_SET_MODE_STRICT || operation == SECCOMP_SET_MODE_FILTER;
}

int hooked_prctl(int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d) {
  if (option == PR_SET_SECCOMP && g_session_calls.in_process()) g_session_calls.finish();
  return prctl(option, a, b, c, d);
}

long hooked_syscall(long number, long a, long b, long c, long d, long e, long f) {
  if (number == SYS_seccomp && sets_filter(a) && g_session_calls.in_process()) g_session_calls.finish();
  return syscall(number, a, b, c, d, e, f);
}

// A process with a second thread gets no user namespace of its own.
int hooked_unshare(int flags) {
  if (flags & CLONE_NEWUSER) g_session_calls.rest_writer();
  return unshare(flags);
}

int hooked_setns(int fd, int type) {
  if (type == 0 || (type & CLONE_NEWUSER)) g_session_calls.rest_writer();
  return setns(fd, type);
}

void* g_found[14];  // never called through: this library's own calls are not replaced

std::vector<Hook> hooks() {
  return {{"_exit", reinterpret_cast<void*>(hooked_exit), &g_found[0]},
          {"_Exit", reinterpret_cast<void*>(hooked_exit), &g_found[1]},
          {"execve", reinterpret_cast<void*>(hooked_execve), &g_found[2]},
          {"execv", reinterpret_cast<void*>(hooked_execv), &g_found[3]},
          {"execvp", reinterpret_cast<void*>(hooked_execvp), &g_found[4]},
          {"execvpe", reinterpret_cast<void*>(hooked_execvpe), &g_found[5]},
          {"fexecve", reinterpret_cast<void*>(hooked_fexecve), &g_found[6]},
          {"execl", reinterpret_cast<void*>(hooked_execl), &g_found[7]},
          {"execlp", reinterpret_cast<void*>(hooked_execlp), &g_found[8]},
          {"execle", reinterpret_cast<void*>(hooked_execle), &g_found[9]},
          {"prctl", reinterpret_cast<void*>(hooked_prctl), &g_found[10]},
          {"syscall", reinterpret_cast<void*>(hooked_syscall), &g_found[11]},
          {"unshare", reinterpret_cast<void*>(hooked_unshare), &g_found[12]},
          {"setns", reinterpret_cast<void*>(hooked_setns), &g_found[13]}};
}

bool anywhere(std::string_view) { return true; }

}  // namespace

void install_exit_hooks() { patch_hooks(hooks(), anywhere); }

}  // namespace dft
