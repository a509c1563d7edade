// The command `dftracer`. Python ignores SIGPIPE and SIGXFSZ from its start on and forgets what it was given; a program
// under `dftracer run` is to get just that. So this looks first, and then becomes the Python command beside it.
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

// What pip writes below the line that names the interpreter. Loading `re` takes as long as all that `run` does itself.
constexpr char kWrittenByPip[] = R"(# -*- coding: utf-8 -*-
import re
import sys
from dftracer.cli import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\.pyw|\.exe)?$', '', sys.argv[0])
    sys.exit(main())
)";

bool ignored(int number) {
  struct sigaction now;
  return sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

// The interpreter of a script that says just that, by a plain path; nothing if it may be or do anything else.
char* interpreter_of(const char* script) {
  static char text[4096];
  int fd = open(script, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return nullptr;
  ssize_t size = read(fd, text, sizeof text - 1);
  close(fd);
  char* end = strchr(text, '\n');
  if (size <= 0 || !end || strncmp(text, "#!/", 3) || strcmp(end + 1, kWrittenByPip)) return nullptr;
  *end = 0;
  return strpbrk(text, " \t\r") ? nullptr : text + 2;
}

}  // namespace

int main(int count, char** argv) {
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
  char* python = count > 1 && !strcmp(argv[1], "run") ? interpreter_of(path) : nullptr;
  char** words = python ? static_cast<char**>(calloc(size_t(count) + 5, sizeof *words)) : nullptr;
  if (words) {
    char safe[] = "-P", option[] = "-c", program[] = "from dftracer.cli import launched; launched()";
    char* first[] = {python, safe, option, program};
    memcpy(words, first, sizeof first);
    memcpy(words + 4, argv, size_t(count) * sizeof *words);
    execv(python, words);
  }
  execv(path, argv);
  perror(path);
  return 2;
}
