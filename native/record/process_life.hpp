// Is the process that left a file behind still running? Known only on its own host, since its boot, in its namespace.
#pragma once

#include <cstdint>

namespace dft {

// Start time of a live process in clock ticks; 0 when there is no such process (zombies count as dead).
uint64_t process_start_time(uint32_t pid);
uint64_t own_pid_namespace();
// Differs for every boot of every host; 0 if the kernel does not say.
uint64_t own_boot();

}  // namespace dft
