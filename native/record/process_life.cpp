#include "record/process_life.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace dft {
namespace {

ssize_t read_small_file(const char* path, char* text, size_t room) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t n = read(fd, text, room - 1);
  close(fd);
  if (n > 0) text[n] = 0;
  return n;
}

}  // namespace

uint64_t process_start_time(uint32_t pid) {
  char path[64], text[1024];
  // The first thread's, which began with the process: in /proc/PID/stat qemu-user shows a process another time than
  // others.
  snprintf(path, sizeof path, "/proc/%u/task/%u/stat", pid, pid);
  if (read_small_file(path, text, sizeof text) <= 0) return 0;
  char* p = strrchr(text, ')');  // the command name may contain anything, the last ')' ends it
  if (!p || p[1] != ' ' || p[2] == 'Z' || p[2] == 'X') return 0;
  p += 2;
  for (int field = 3; field < 22 && p; ++field) p = strchr(p + 1, ' ');
  return p ? strtoull(p, nullptr, 10) : 0;
}

uint64_t own_pid_namespace() {
  struct stat st;
  return stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

uint64_t own_boot() {
  char text[64];
  ssize_t n = read_small_file("/proc/sys/kernel/random/boot_id", text, sizeof text);
  // FNV-1a: 64 bits of a random id are enough.
  uint64_t hash = 0xcbf29ce484222325;
  for (ssize_t i = 0; i < n; ++i) hash = (hash ^ uint8_t(text[i])) * 0x100000001b3;
  return n > 0 ? hash : 0;
}

}  // namespace dft
