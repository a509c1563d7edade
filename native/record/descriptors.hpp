// Descriptors of ours in a program that counts on the low numbers: shells close one and expect to get it back, daemons
// close all they did not open.
#pragma once

#include <sys/types.h>

namespace dft {

inline constexpr int kOutOfTheWay = 200;

// open(), far from the low numbers. Another thread of the program may put a file of its own under the low number that
// the kernel gives first, between any two of our calls: then that is left alone and ours is opened again.
int open_high_fd(const char* path, int flags, mode_t mode = 0);

}  // namespace dft
