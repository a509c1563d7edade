// Replaces functions in the slots of all loaded objects, also of those loaded later, and takes it back.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace dft {

struct Hook {
  const char* symbol;
  void* wrapper;
  void** original;  // filled in before the first slot is changed
};

// Which objects a set of hooks goes into; `path` is "" for the program itself.
using ObjectFilter = bool (*)(std::string_view path);

struct PatchFacts {
  uint32_t slots, objects, refused;
};

// Patches now and in every library that comes later. Adding the same hooks again changes nothing.
void patch_hooks(const std::vector<Hook>& hooks, ObjectFilter wanted);
// Puts the originals back wherever a wrapper of these hooks is found.
void restore_hooks(const std::vector<Hook>& hooks);
// Patches libraries that came since the last look; costs one call of the loader when there are none.
void patch_new_objects();
PatchFacts patch_facts();

// Held over fork: the child must not inherit a scan in progress.
void lock_patcher();
void unlock_patcher();

}  // namespace dft
