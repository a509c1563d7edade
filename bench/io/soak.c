/* Everything at once, for as long as asked:

     soak DIRECTORY SECONDS PLUGIN

   eight threads of descriptors and streams, forks, vforks and spawns, a library that comes and goes, a timer whose
   handler does I/O. Prints one line per second and sample, "sample <resident KiB> <descriptors>", and at the end
   "calls <of the eight threads> forks <n> handled <calls of the handler>". */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char** environ;

static const char* directory;
static const char* plugin;
static double end;
static long calls, forks, handled;
static int side;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

static void on_alarm(int number) {
  (void)number;
  int saved = errno;
  long n = __atomic_fetch_add(&handled, 1, __ATOMIC_RELAXED);
  if (pwrite(side, "x", 1, n & 1023) != 1) abort();
  errno = saved;
}

static void* files(void* p) {
  char path[4096], buf[512] = {0};
  snprintf(path, sizeof path, "%s/f%ld", directory, (long)p);
  while (now() < end) {
    FILE* f = fopen(path, "w+");
    if (!f || fwrite(buf, 1, 100, f) != 100 || fclose(f)) abort();
    f = fopen(path, "r");
    if (!f || fread(buf, 1, 100, f) != 100 || fclose(f)) abort();
    int fd = open(path, O_RDWR);
    if (fd < 0 || pwrite(fd, buf, 64, 0) != 64 || read(fd, buf, 10) != 10 || close(fd)) abort();
    __atomic_fetch_add(&calls, 10, __ATOMIC_RELAXED);
    usleep(2000);
  }
  return 0;
}

static void wait_for(pid_t pid) {
  int status = 0;
  pid_t got;
  do got = waitpid(pid, &status, 0);
  while (got < 0 && errno == EINTR);
  if (got != pid || status) abort();
}

static void* processes(void* p) {
  char path[4096];
  for (; now() < end; ++forks) {
    snprintf(path, sizeof path, "%s/c%ld", directory, forks % 16);
    pid_t pid = fork();
    if (pid == 0) {
      int fd = open(path, O_WRONLY | O_CREAT, 0644);
      if (fd < 0 || write(fd, "abc", 3) != 3 || close(fd)) _exit(1);
      _exit(0);
    }
    if (pid < 0) abort();
    wait_for(pid);
    unlink(path);
    pid = vfork();
    if (pid == 0) {
      close(3);
      execl("/bin/true", "true", (char*)0);
      _exit(1);
    }
    wait_for(pid);
    char* argv[] = {"true", 0};
    if (posix_spawn(&pid, "/bin/true", 0, 0, argv, environ)) abort();
    wait_for(pid);
    usleep(200000);
  }
  return p;
}

static void* loads(void* p) {
  char path[4096];
  snprintf(path, sizeof path, "%s/from_plugin", directory);
  while (now() < end) {
    void* library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
    if (!library) abort();
    void (*touch)(const char*) = (void (*)(const char*))dlsym(library, "touch");
    if (!touch) abort();
    touch(path);
    dlclose(library);
    usleep(100000);
  }
  return p;
}

static void sample(void) {
  long pages = 0, resident = 0, descriptors = 0;
  FILE* f = fopen("/proc/self/statm", "r");
  if (!f || fscanf(f, "%ld %ld", &pages, &resident) != 2) abort();
  fclose(f);
  DIR* d = opendir("/proc/self/fd");
  while (readdir(d)) ++descriptors;
  closedir(d);
  printf("sample %ld %ld\n", resident * (sysconf(_SC_PAGESIZE) / 1024), descriptors);
  fflush(stdout);
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  directory = argv[1];
  plugin = argv[3];
  end = now() + atof(argv[2]);
  char path[4096];
  snprintf(path, sizeof path, "%s/side", directory);
  side = open(path, O_RDWR | O_CREAT, 0644);
  struct sigaction action = {0};
  action.sa_handler = on_alarm;
  action.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &action, 0);
  struct itimerval timer = {{0, 10000}, {0, 10000}};
  setitimer(ITIMER_REAL, &timer, 0);
  pthread_t t[10];
  for (long i = 0; i < 8; ++i) pthread_create(&t[i], 0, files, (void*)i);
  pthread_create(&t[8], 0, processes, 0);
  pthread_create(&t[9], 0, loads, 0);
  while (now() < end) {
    sample();
    for (int i = 0; i < 20 && now() < end; ++i) usleep(50000);
  }
  for (int i = 0; i < 10; ++i) pthread_join(t[i], 0);
  struct itimerval stop = {{0, 0}, {0, 0}};
  setitimer(ITIMER_REAL, &stop, 0);
  printf("calls %ld forks %ld handled %ld\n", calls, forks, handled);
  return 0;
}
