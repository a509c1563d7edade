// The 16-hex-digit hash of the trace format: bytes 0,2,4,...,14 of the MD5 digest.
#pragma once

#include "api.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace dft {

std::array<uint8_t, 16> md5(std::string_view text);
// The same 64 bits as a number: its 16 hex digits are the short hash.
uint64_t short_hash_bits(std::string_view text);
DFT_API std::string short_hash(std::string_view text);

}  // namespace dft
