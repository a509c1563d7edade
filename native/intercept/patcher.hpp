// Replaces functions in the slots of all loaded objects, including those loaded later, and can undo it.
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

// Patches now, and every library loaded later. Adding the same hooks again changes nothing.
void patch_hooks(const std::vector<Hook>& hooks, ObjectFilter wanted);
// The same for libraries of which a process may hold several copies: `hooks` has `copies` rows for each symbol, and
// every slot gets a row whose original is the function that its caller reaches without us.
void patch_copied_hooks(const std::vector<Hook>& hooks, uint32_t copies, ObjectFilter wanted);
// Restores the originals wherever a wrapper of these hooks is found.
void restore_hooks(const std::vector<Hook>& hooks);
// Patches libraries loaded since the last scan; costs one call to the loader if there are none.
void patch_new_objects();
PatchFacts patch_facts();
PatchFacts copied_patch_facts();

// Lets our own calls lead to the C library itself, past libraries that put theirs in front of it: once a process exits,
// such a library may have been torn down.
void call_libc_directly();

// Held over fork: the child must not inherit a scan in progress.
void lock_patcher();
void unlock_patcher();

}  // namespace dft
