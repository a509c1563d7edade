// Collectives of gloo, as libtorch runs them: DDP's and FSDP's as well as those a program asks for.
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

// A collective that this process has come to and that is not over.
struct OpenCollective {
  const char* operation;
  char group[64];
  uint64_t seq;
  int64_t bytes;
  uint64_t since;  // ticks: when the program came to it
};

// The collectives that are open now, the longest first; returns how many. Callable from any thread.
DFT_API size_t open_collectives(OpenCollective* out, size_t most);
// Ticks at the end of the last one; 0: there was none.
DFT_API uint64_t last_collective_end();

// Wait, 50 ms at most, until no thread of gloo holds a collective that is over; without the GIL. A tensor that such a
// thread lets go of last takes the GIL: while the interpreter ends that ends the thread inside a destructor, and so
// aborts the process. Torch has this race on its own, and a busier machine loses it more often.
DFT_API void wait_until_gloo_lets_go();

// A call of torch.distributed begins on this thread. `recorded`: it has a record of its own, so that what gloo does for
// it needs none.
DFT_API void python_collective_begins(bool recorded);
// Its number in its group, or 0 if gloo was not seen to begin one.
DFT_API uint64_t python_collective_ends();
// Whether collectives are recorded by somebody else; they are still followed.
DFT_API void leave_collectives(bool leave);
// The groups that this thread has created and that have no name yet.
DFT_API void name_new_groups(std::string_view name);

}  // namespace dft
