// The ends of a process that run no exit handlers: _exit and exec. os._exit() and os.exec*() of CPython
// reach them through the program's or libpython's offset table.
#include <unistd.h>

#include <cstdlib>

#include "intercept/got.hpp"
#include "session.hpp"

namespace dft {
namespace {

// A vfork child runs in its parent's memory: in_session_process() tells them apart by pid.
[[noreturn]] void hooked_exit(int status) {
  if (in_session_process()) finish_session();
  _exit(status);
}

template <typename Call>
int exec_after_flush(Call call) {
  before_exec();
  int rc = call();
  after_failed_exec();
  return rc;
}

int hooked_execve(const char* path, char* const argv[], char* const envp[]) {
  return exec_after_flush([&] { return execve(path, argv, envp); });
}

int hooked_execv(const char* path, char* const argv[]) {
  return exec_after_flush([&] { return execv(path, argv); });
}

int hooked_fexecve(int fd, char* const argv[], char* const envp[]) {
  return exec_after_flush([&] { return fexecve(fd, argv, envp); });
}

bool holds_interpreter(std::string_view object) {
  return object.empty() || object.find("libpython") != std::string_view::npos;
}

}  // namespace

void install_exit_hooks() {
  patch_got({{"_exit", reinterpret_cast<void*>(hooked_exit)},
             {"_Exit", reinterpret_cast<void*>(hooked_exit)},
             {"execve", reinterpret_cast<void*>(hooked_execve)},
             {"execv", reinterpret_cast<void*>(hooked_execv)},
             {"fexecve", reinterpret_cast<void*>(hooked_fexecve)}},
            holds_interpreter);
}

}  // namespace dft
