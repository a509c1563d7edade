#include "intercept/patched_page.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>

namespace dft {
namespace {

#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;
#endif

bool ask_by_advice(uintptr_t page) {
  return madvise(reinterpret_cast<void*>(page), size_t(sysconf(_SC_PAGESIZE)), MADV_POPULATE_WRITE) == 0;
}

// Linux before 5.14 does not know this advice, and returns the same error as for a read-only page. Emulators and
// sandboxes take every advice, and do nothing.
bool advice_known() {
  alignas(64) static char writable[64];
  alignas(64) static const char constant[64] = "read-only";
  auto page_of = [](const char* at) { return reinterpret_cast<uintptr_t>(at) & ~uintptr_t(sysconf(_SC_PAGESIZE) - 1); };
  return ask_by_advice(page_of(writable)) && !ask_by_advice(page_of(constant));
}

bool ask_by_maps(uintptr_t page) {
  FILE* maps = fopen("/proc/self/maps", "re");
  if (!maps) return false;
  char line[512];
  bool writable = false;
  while (fgets(line, sizeof line, maps)) {
    uint64_t begin, end;
    char rights[5];
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s", &begin, &end, rights) != 3) continue;
    if (page < begin || page >= end) continue;
    writable = rights[1] == 'w';
    break;
  }
  fclose(maps);
  return writable;
}

}  // namespace

bool page_writable(uintptr_t page) {
  static const bool known = advice_known();
  return known ? ask_by_advice(page) : ask_by_maps(page);
}

}  // namespace dft
