/* What the interception of a short CUDA call costs. With RUNTIME: a runtime whose only call returns at once. Otherwise a
   program that calls it by turns as a library does, through its table of calls, and by an address looked up itself, which
   nobody replaces. Prints for every turn the ns per call of both, and of two readings of the clock, the least it can cost. */
#include <stddef.h>

#ifdef RUNTIME
int cudaMemcpyAsync(void* to, const void* from, size_t count, int kind, void* stream) {
  return count == 1 && to == stream ? kind : from != 0;
}
#else
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#if defined(__x86_64__)
#include <x86intrin.h>
static unsigned long tick(void) { return __rdtsc(); }
#else
static unsigned long tick(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ul + t.tv_nsec;
}
#endif

int cudaMemcpyAsync(void*, const void*, size_t, int, void*);
typedef int (*Copy)(void*, const void*, size_t, int, void*);
static volatile int sink;
static volatile unsigned long spent;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(int argc, char** argv) {
  long calls = atol(argv[1]), turns = atol(argv[2]);
  volatile Copy direct = (Copy)dlsym(dlopen("libcudart.so", RTLD_NOW), "cudaMemcpyAsync");
  for (long turn = 0; turn < turns; ++turn) {
    double times[4];
    times[0] = now();
    for (long i = 0; i < calls; ++i) sink = cudaMemcpyAsync(0, 0, 64, 1, 0);
    times[1] = now();
    for (long i = 0; i < calls; ++i) sink = direct(0, 0, 64, 1, 0);
    times[2] = now();
    for (long i = 0; i < calls; ++i) {
      unsigned long before = tick();
      spent = tick() - before;
    }
    times[3] = now();
    for (int i = 0; i < 3; ++i) printf("%f ", (times[i + 1] - times[i]) / calls);
    puts("");
  }
  return 0;
}
#endif
