// The replaced symbols by number, and what they really lead to.
#pragma once

#include <vector>

#include "intercept/patcher.hpp"

namespace dft {

enum Symbol : int {
#define IO_HOOK(category, symbol, wrapper) S_##symbol,
#include "intercept/io_hooks.def"
  kSymbols
};

extern void* g_real[kSymbols];

template <int S, typename F>
inline F* real() {
  return reinterpret_cast<F*>(g_real[S]);
}

void add_posix_hooks(std::vector<Hook>* out);
void add_stdio_hooks(std::vector<Hook>* out);
void add_process_hooks(std::vector<Hook>* out);
void add_loader_hooks(std::vector<Hook>* out);

}  // namespace dft
