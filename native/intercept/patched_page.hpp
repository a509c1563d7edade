// What the kernel lets us do with a page.
#pragma once

#include <cstdint>

namespace dft {

// May the page be written by now? One that is not mapped may not.
bool page_writable(uintptr_t page);

}  // namespace dft
