#include "session/warm_up.hpp"

#include <fcntl.h>
#include <linux/membarrier.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "intercept/io_record.hpp"
#include "record/descriptors.hpp"
#include "record/sanitizer.hpp"
#include "session/quiet_thread.hpp"

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

bool prepare_aside() { return start_quiet_thread(prepare, nullptr, Joined::kNever) == 0; }

}  // namespace

void warm_up(bool alone) {
  // Under a sanitizer, the child of a program with threads is not recorded (fork.cpp): do not add a thread there.
  if (alone || any_sanitizer() || one_thread() || !prepare_aside()) prepare(nullptr);
}

}  // namespace dft
