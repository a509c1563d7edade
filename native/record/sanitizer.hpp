// Does the program contain a sanitizer runtime?
#pragma once

#include <dlfcn.h>

namespace dft {

inline bool thread_sanitizer() {
  static const bool there = dlsym(RTLD_DEFAULT, "__tsan_init") != nullptr;
  return there;
}

inline bool any_sanitizer() {
  static const bool there = thread_sanitizer() || dlsym(RTLD_DEFAULT, "__asan_init") != nullptr;
  return there;
}

}  // namespace dft
