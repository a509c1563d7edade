// Memory that does not come from the heap: a thread's first event may come in a signal handler that has interrupted
// malloc.
#pragma once

#include <cstddef>

namespace dft {

void* take_pages(size_t size);
void give_pages(void* pages, size_t size);

}  // namespace dft
