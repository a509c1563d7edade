// What one event costs the thread that records it, measured with the real code on this machine.
#pragma once

#include <cstdint>

namespace dft {

// Nanoseconds per event, times 100.
uint64_t measure_event_cost();

}  // namespace dft
