// The tracer's own descriptors, in a program that relies on the low numbers: shells close one and expect to get it
// back, daemons close all they did not open.
#pragma once

#include <sys/types.h>

namespace dft {

inline constexpr int kOutOfTheWay = 200;

// open(), away from the low numbers. Between any two of our calls, another thread of the program may put its own file
// under the low number that the kernel assigns first: then that file is left alone and ours is opened again.
int open_high_fd(const char* path, int flags, mode_t mode = 0);

}  // namespace dft
