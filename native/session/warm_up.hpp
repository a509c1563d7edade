// What the kernel takes its time for, done ahead.
#pragma once

namespace dft {

// A larger table of descriptors, and the right to the barrier that spares the hot path one. In a process with several
// threads either keeps its caller waiting for some 10 ms, which must not fall on the first traced call nor on the
// start of the session: a thread of its own waits for them then.
// `alone`: known to be the only thread, as in the child of a fork.
void warm_up(bool alone);

}  // namespace dft
