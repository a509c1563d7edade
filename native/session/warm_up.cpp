#include "session/warm_up.hpp"

#include <fcntl.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "intercept/io_record.hpp"
#include "record/descriptors.hpp"
#include "record/sanitizer.hpp"

namespace dft {
namespace {

// Not by duplicating one of the program's descriptors: closing that would release the program's locks on the file.
void widen_descriptor_table() {
  int fd = open_high_fd("/", O_PATH);
  if (fd >= 0) close(fd);
}

void* prepare(void*) {
  ++tls_io_off;
  widen_descriptor_table();
  syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
  --tls_io_off;
  return nullptr;
}

bool one_thread() {
  struct stat st;
  return stat("/proc/self/task", &st) == 0 && st.st_nlink == 3;  // itself, its parent, and one thread
}

bool prepare_aside() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  bool begun = pthread_create(&thread, &attr, prepare, nullptr) == 0;
  pthread_attr_destroy(&attr);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return begun;
}

}  // namespace

void warm_up(bool alone) {
  // Under a sanitizer, the child of a program with threads is not recorded (fork.cpp): do not add a thread there.
  if (alone || any_sanitizer() || one_thread() || !prepare_aside()) prepare(nullptr);
}

}  // namespace dft
