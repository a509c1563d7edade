// Events of a profiler trace.
#include "link/json.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  dft::link::Events out;
  dft::link::parse_events(text, out);
  return 0;
}
