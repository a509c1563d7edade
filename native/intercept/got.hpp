// Replaces calls of a libc function in loaded objects by rewriting their global offset tables.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

namespace dft {

struct GotPatch {
  const char* symbol;
  void* replacement;
};

// Patches every slot of the given symbols in the objects that `wanted` names ("" is the program itself).
// Returns the number of slots changed.
int patch_got(const std::vector<GotPatch>& patches, const std::function<bool(std::string_view)>& wanted);

}  // namespace dft
