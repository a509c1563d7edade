// Collectives of gloo, as libtorch runs them: those of DDP and FSDP as well as the program's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "api.hpp"
#include "intercept/patcher.hpp"

namespace dft {

void add_gloo_hooks(std::vector<Hook>* out);
// Before the first call is replaced.
void prepare_gloo_records();
bool holds_gloo(std::string_view path);

// A collective that this process has entered and that is not over.
struct OpenCollective {
  const char* operation;
  char group[64];
  uint64_t seq;
  int64_t bytes;
  uint64_t since;  // ticks: when the program entered it
};

// The collectives that are open now, the longest first; returns how many. Callable from any thread.
DFT_API size_t open_collectives(OpenCollective* out, size_t most);
// Ticks at the end of the last one; 0: there was none.
DFT_API uint64_t last_collective_end();

// Wait, 50 ms at most, until no thread of gloo holds a collective that is over; without the GIL. A tensor that such a
// thread is the last to release takes the GIL: at interpreter exit that ends the thread inside a destructor, and so
// aborts the process. Torch has this race on its own, and a busier machine loses it more often.
DFT_API void wait_for_gloo_threads();

// A call of torch.distributed begins on this thread. `recorded`: it has an event of its own, so that gloo's needs none.
DFT_API void python_collective_begins(bool recorded);
// Its number in its group, or 0 if gloo was not seen to begin one.
DFT_API uint64_t python_collective_ends();
// Whether to write no events of collectives, because something else does; they are still followed.
DFT_API void skip_collectives(bool skip);
// The groups that this thread has created and that have no name yet.
DFT_API void name_new_groups(std::string_view name);

}  // namespace dft
