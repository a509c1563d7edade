// Deflate decoding for a whole stream of known size, by libdeflate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

struct libdeflate_decompressor;

namespace dft::load {

class WholeInflate {
 public:
  WholeInflate();

  // Decodes the raw deflate stream in [in, in+n) to exactly `size` bytes at `out`. Returns the bytes of input used,
  // 0 if the stream is damaged or does not give exactly `size` bytes; `out` is then undefined.
  size_t decode(const uint8_t* in, size_t n, uint8_t* out, size_t size);

 private:
  struct Free {
    void operator()(libdeflate_decompressor* d) const;
  };
  std::unique_ptr<libdeflate_decompressor, Free> decompressor_;
};

}  // namespace dft::load
