// Calls that assign a descriptor number to something that is not a file, or to a file of unknown name. A program may
// have closed the number's last file by a raw system call; without these hooks, later calls would be recorded for it.
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include "intercept/hook_table.hpp"
#include "intercept/posix_calls.hpp"

namespace dft {
namespace {

void is_no_file(int fd) {
  if (fd >= 0 && io_active()) set_descriptor(fd, {}, {}, 0);
}

// Some file: looked up when it is used.
void is_unknown(int fd) {
  if (fd >= 0 && io_active()) clear_descriptor(fd);
}

template <int S, typename... A>
int no_file(A... args) {
  int fd = real<S, int(A...)>()(args...);
  is_no_file(fd);
  return fd;
}

template <int S, typename... A>
int unknown_file(A... args) {
  int fd = real<S, int(A...)>()(args...);
  is_unknown(fd);
  return fd;
}

template <int S, typename... A>
int two_of_no_file(int* pair, A... args) {
  int ret = real<S, int(A...)>()(args...);
  if (ret == 0) {
    is_no_file(pair[0]);
    is_no_file(pair[1]);
  }
  return ret;
}

template <int S>
int hook_socket(int domain, int type, int protocol) {
  return no_file<S>(domain, type, protocol);
}

template <int S>
int hook_socketpair(int domain, int type, int protocol, int* pair) {
  return two_of_no_file<S>(pair, domain, type, protocol, pair);
}

template <int S>
int hook_accept(int fd, sockaddr* address, socklen_t* size) {
  return no_file<S>(fd, address, size);
}

template <int S>
int hook_accept4(int fd, sockaddr* address, socklen_t* size, int flags) {
  return no_file<S>(fd, address, size, flags);
}

template <int S>
int hook_pipe(int* pair) {
  return two_of_no_file<S>(pair, pair);
}

template <int S>
int hook_pipe2(int* pair, int flags) {
  return two_of_no_file<S>(pair, pair, flags);
}

template <int S>
int hook_eventfd(unsigned count, int flags) {
  return no_file<S>(count, flags);
}

template <int S>
int hook_epoll_create(int size_or_flags) {
  return no_file<S>(size_or_flags);
}

template <int S>
int hook_timerfd_create(int clock, int flags) {
  return no_file<S>(clock, flags);
}

template <int S>
int hook_signalfd(int fd, const sigset_t* set, int flags) {
  return no_file<S>(fd, set, flags);
}

template <int S>
int hook_inotify_init() {
  return no_file<S>();
}

template <int S>
int hook_inotify_init1(int flags) {
  return no_file<S>(flags);
}

template <int S>
int hook_pidfd_open(pid_t pid, unsigned flags) {
  return no_file<S>(pid, flags);
}

template <int S>
int hook_memfd_create(const char* name, unsigned flags) {
  return unknown_file<S>(name, flags);
}

template <int S>
int hook_shm_open(const char* name, int flags, mode_t mode) {
  return unknown_file<S>(name, flags, mode);
}

template <int S>
int hook_posix_openpt(int flags) {
  return unknown_file<S>(flags);
}

template <int S>
int hook_mkstemp(char* name) {
  return unknown_file<S>(name);
}

template <int S>
int hook_mkstemp_with(char* name, int suffix_or_flags) {
  return unknown_file<S>(name, suffix_or_flags);
}

template <int S>
int hook_mkostemps(char* name, int suffix, int flags) {
  return unknown_file<S>(name, suffix, flags);
}

template <int S>
FILE* hook_tmpfile() {
  FILE* file = real<S, FILE*()>()();
  if (file) is_unknown(fileno(file));
  return file;
}

template <int S>
FILE* hook_popen(const char* command, const char* mode) {
  FILE* file = real<S, FILE*(const char*, const char*)>()(command, mode);
  if (file) is_no_file(fileno(file));
  return file;
}

// Descriptors can also arrive in messages.
template <int S>
ssize_t hook_recvmsg(int fd, msghdr* message, int flags) {
  ssize_t ret = real<S, ssize_t(int, msghdr*, int)>()(fd, message, flags);
  if (ret < 0 || !message->msg_control || message->msg_controllen < sizeof(cmsghdr) || !io_active()) return ret;
  for (cmsghdr* c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(0)) continue;
    size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < n; ++i) {
      int received;
      memcpy(&received, CMSG_DATA(c) + i * sizeof received, sizeof received);
      is_unknown(received);
    }
  }
  return ret;
}

}  // namespace

#define IO_HOOK_NUMBER ADD_HOOK
void add_number_hooks(std::vector<Hook>* out) {
#include "format/io_hooks.def"
}

}  // namespace dft
