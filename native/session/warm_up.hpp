// Slow kernel operations, done ahead of time.
#pragma once

namespace dft {

// A larger descriptor table, and registration for the barrier that spares the hot path one. In a process with several
// threads either makes its caller wait for some 10 ms, which must not hit the first traced call or the
// start of the session: a separate thread waits for them then.
// `alone`: known to be the only thread, as in the child of a fork.
void warm_up(bool alone);

}  // namespace dft
