/* A library with I/O of its own, for the soak to load and unload. */
#include <fcntl.h>
#include <unistd.h>

void touch(const char* path) {
  int fd = open(path, O_WRONLY | O_CREAT, 0644);
  if (fd >= 0) close(fd);
}
