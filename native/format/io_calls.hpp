// What the trace records for each traced call: its category, its name and the names of its values.
#pragma once

#include <cstdint>

namespace dft {

enum class Call : uint16_t {
#define IO_CALL(category, event, role, ...) event##_,
#include "format/io_hooks.def"
  kCount
};

struct CallText {
  const char* category;
  const char* name;
  const char* keys[4];  // a key that ends in "hash" names a file
};

inline constexpr CallText kCalls[] = {
#define IO_CALL(category, event, role, ...) {#category, #event, {__VA_ARGS__}},
#include "format/io_hooks.def"
};

}  // namespace dft
