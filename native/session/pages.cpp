#include "session/pages.hpp"

#include <sys/mman.h>

// Present in programs with a leak checker, which otherwise finds no pointers to heap blocks in these pages.
extern "C" __attribute__((weak)) void __lsan_register_root_region(const void*, size_t);
extern "C" __attribute__((weak)) void __lsan_unregister_root_region(const void*, size_t);

namespace dft {

void* take_pages(size_t size) {
  void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  if (__lsan_register_root_region) __lsan_register_root_region(p, size);
  return p;
}

void give_pages(void* p, size_t size) {
  if (__lsan_unregister_root_region) __lsan_unregister_root_region(p, size);
  munmap(p, size);
}

}  // namespace dft
