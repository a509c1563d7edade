// What the kernel lets us do with a page.
#pragma once

#include <cstdint>

namespace dft {

// Is the page writable by now? An unmapped one is not.
bool page_writable(uintptr_t page);

}  // namespace dft
