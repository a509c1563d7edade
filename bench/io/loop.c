/* open + pread 4 KiB + close, the loop of the I/O benchmark.

     loop FILE ROUNDS THREADS MODE [COMPANY]

   MODE 0 measures the loop; 1 measures every call by itself. COMPANY 1 starts one more thread, which sleeps: a process
   with a second thread pays for it at every call, traced or not.

   Prints: wall ns, calls, CPU ns of the first thread; then, of the calls measured by themselves, one line for each that
   took 0.2 ms and more: thread id, how many calls that thread had made before, its ns, of them on the CPU, times it was
   preempted. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { kWarm = 1000, kMostSlow = 4096, kSlow = 200000 };

struct slow {
  long tid, number, wall, cpu, preempted;
};

static char path[4096];
static long rounds;
static int timed;
static struct slow slow[kMostSlow];
static int slows;

static long read_clock(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec * 1000000000L + t.tv_nsec;
}

struct moment {
  long preempted, cpu, wall;
};

static struct moment now(void) {
  struct rusage use;
  getrusage(RUSAGE_THREAD, &use);
  struct moment m = {use.ru_nivcsw, read_clock(CLOCK_THREAD_CPUTIME_ID), 0};
  m.wall = read_clock(CLOCK_MONOTONIC);
  return m;
}

static void judge(struct moment before, long number) {
  long wall = read_clock(CLOCK_MONOTONIC) - before.wall;
  if (wall < kSlow) return;
  struct moment after = now();
  int i = __atomic_fetch_add(&slows, 1, __ATOMIC_RELAXED);
  if (i >= kMostSlow) return;
  slow[i] = (struct slow){syscall(SYS_gettid), number, wall, after.cpu - before.cpu, after.preempted - before.preempted};
}

static void* work(void* first) {
  static __thread char buf[4096];
  long number = *(long*)first;
  for (long i = 0; i < rounds; ++i, number += 3) {
    if (!timed) {
      int fd = open(path, O_RDONLY);
      if (fd < 0 || pread(fd, buf, sizeof buf, (i & 15) * 4096) != sizeof buf) abort();
      close(fd);
      continue;
    }
    struct moment m = now();
    int fd = open(path, O_RDONLY);
    judge(m, number);
    if (fd < 0) abort();
    m = now();
    ssize_t n = pread(fd, buf, sizeof buf, (i & 15) * 4096);
    judge(m, number + 1);
    if (n != sizeof buf) abort();
    m = now();
    close(fd);
    judge(m, number + 2);
  }
  return 0;
}

static void* sleep_on(void* nothing) {
  pause();
  return nothing;
}

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  strcpy(path, argv[1]);
  long wanted = atol(argv[2]);
  int threads = atoi(argv[3]);
  timed = atoi(argv[4]);
  pthread_t t[64], company;
  if (argc > 5 && atoi(argv[5])) pthread_create(&company, 0, sleep_on, 0);
  long first = 0, begun = 3 * kWarm;
  rounds = kWarm;
  work(&first); /* what happens once belongs to the stalls, not to the loop */
  rounds = wanted;
  long cpu = read_clock(CLOCK_THREAD_CPUTIME_ID), start = read_clock(CLOCK_MONOTONIC);
  for (int i = 1; i < threads; ++i) pthread_create(&t[i], 0, work, &first);
  work(&begun);
  for (int i = 1; i < threads; ++i) pthread_join(t[i], 0);
  long wall = read_clock(CLOCK_MONOTONIC) - start;
  cpu = read_clock(CLOCK_THREAD_CPUTIME_ID) - cpu;
  printf("%ld %ld %ld\n", wall, rounds * threads * 3, cpu);
  for (int i = 0; i < slows && i < kMostSlow; ++i)
    printf("%ld %ld %ld %ld %ld\n", slow[i].tid, slow[i].number, slow[i].wall, slow[i].cpu, slow[i].preempted);
  return 0;
}
