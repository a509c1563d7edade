#include "whole_inflate.hpp"

#include <libdeflate.h>

#include <new>

namespace dft::load {

void WholeInflate::Free::operator()(libdeflate_decompressor* d) const { libdeflate_free_decompressor(d); }

WholeInflate::WholeInflate() : decompressor_(libdeflate_alloc_decompressor()) {
  if (!decompressor_) throw std::bad_alloc();
}

size_t WholeInflate::decode(const uint8_t* in, size_t n, uint8_t* out, size_t size) {
  size_t used = 0;
  // Without a place for the size, another one than stated is an error.
  const auto result = libdeflate_deflate_decompress_ex(decompressor_.get(), in, n, out, size, &used, nullptr);
  return result == LIBDEFLATE_SUCCESS ? used : 0;
}

}  // namespace dft::load
