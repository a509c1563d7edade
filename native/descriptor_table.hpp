// Room for the descriptors that we keep out of the program's way.
#pragma once

namespace dft {

inline constexpr int kOutOfTheWay = 200;

// Has the kernel enlarge the table of descriptors ahead of use. In a process with several threads that takes it some
// 10 ms, which must not fall on the first traced call: a thread of its own waits for it then.
void widen_descriptor_table();

}  // namespace dft
