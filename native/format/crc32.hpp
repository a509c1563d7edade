// The CRC of gzip, with the CPU's carry-less multiplication where there is one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dft {

uint32_t gzip_crc32(const void* data, size_t size);

}  // namespace dft
