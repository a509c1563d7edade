// The replaced symbols by number, and the original functions.
#pragma once

#include <vector>

#include "intercept/patcher.hpp"

namespace dft {

enum Symbol : int {
#define IO_HOOK(symbol, wrapper) S_##symbol,
#include "format/io_hooks.def"
  kSymbols
};

extern void* g_real[kSymbols];

template <int S, typename F>
inline F* real() {
  return reinterpret_cast<F*>(g_real[S]);
}

#define ADD_HOOK(symbol, wrapper) \
  out->push_back({#symbol, reinterpret_cast<void*>(wrapper<S_##symbol>), &g_real[S_##symbol]});

void add_open_hooks(std::vector<Hook>* out);
void add_descriptor_hooks(std::vector<Hook>* out);
void add_path_hooks(std::vector<Hook>* out);
void add_directory_hooks(std::vector<Hook>* out);
void add_transfer_hooks(std::vector<Hook>* out);
void add_stdio_hooks(std::vector<Hook>* out);
void add_process_hooks(std::vector<Hook>* out);
void add_number_hooks(std::vector<Hook>* out);
void add_loader_hooks(std::vector<Hook>* out);

}  // namespace dft
