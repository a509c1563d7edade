/* open + pread 4 KiB + close, the loop of the I/O benchmark. Prints: wall ns, calls,
   longest round in ns, CPU ns of the first thread. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char path[4096];
static long rounds;
static int timed;

static long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000L + t.tv_nsec;
}

static long own_cpu(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void* work(void* longest) {
  static __thread char buf[4096];
  long worst = 0;
  for (long i = 0; i < rounds; ++i) {
    long a = timed ? now() : 0;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || pread(fd, buf, sizeof buf, (i & 15) * 4096) != sizeof buf) abort();
    close(fd);
    if (timed) {
      long d = now() - a;
      if (d > worst) worst = d;
    }
  }
  *(long*)longest = worst;
  return 0;
}

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  strcpy(path, argv[1]);
  rounds = atol(argv[2]);
  int threads = atoi(argv[3]);
  timed = atoi(argv[4]);
  long worst[64] = {0};
  pthread_t t[64];
  long warm = rounds;
  rounds = 1000;
  work(&worst[0]);
  rounds = warm;
  worst[0] = 0;
  long cpu = own_cpu(), start = now();
  for (int i = 1; i < threads; ++i) pthread_create(&t[i], 0, work, &worst[i]);
  work(&worst[0]);
  for (int i = 1; i < threads; ++i) pthread_join(t[i], 0);
  long wall = now() - start;
  cpu = own_cpu() - cpu;
  for (int i = 1; i < threads; ++i)
    if (worst[i] > worst[0]) worst[0] = worst[i];
  printf("%ld %ld %ld %ld\n", wall, rounds * threads * 3, worst[0], cpu);
  return 0;
}
