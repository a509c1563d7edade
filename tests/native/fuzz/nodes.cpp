// Nodes of an execution trace.
#include "link/json.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  dft::link::Nodes out;
  dft::link::parse_nodes(text, out);
  return 0;
}
