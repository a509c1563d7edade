// The command `dftracer`. Python ignores SIGPIPE and SIGXFSZ from its start on and forgets what it was given; a program
// under `dftracer run` is to get just that. So this looks first, and then becomes the Python command beside it.
#include <limits.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

bool ignored(int number) {
  struct sigaction now;
  return sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace

int main(int, char** argv) {
  char path[PATH_MAX + 16];
  ssize_t size = readlink("/proc/self/exe", path, PATH_MAX);
  if (size <= 0) {
    fprintf(stderr, "dftracer: cannot find its own directory in /proc\n");
    return 2;
  }
  path[size] = 0;
  char text[8];
  snprintf(text, sizeof text, "%d,%d", ignored(SIGPIPE) ? SIGPIPE : 0, ignored(SIGXFSZ) ? SIGXFSZ : 0);
  setenv("DFTRACER_IGNORED_SIGNALS", text, 1);
  char* directory_end = strrchr(path, '/');
  strcpy(directory_end + 1, "dftracer-python");
  argv[0] = path;
  execv(path, argv);
  perror(path);
  return 2;
}
