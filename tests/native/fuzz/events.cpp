// Events of a profiler trace.
#include "link/json.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  dft::link::Events out;
  dft::link::parse_events(text, out);
  return 0;
}
