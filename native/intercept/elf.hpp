// The loaded objects of the process and the slots through which they call functions of others.
#pragma once

#include <link.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dft {

struct ElfObject {
  std::string_view path;  // "" is the program itself
  uintptr_t base = 0;
  uintptr_t begin = 0, end = 0;              // all of its segments
  uintptr_t relro_begin = 0, relro_end = 0;  // whole pages, read-only after relocation
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  const ElfW(Rela) * tables[2] = {};
  size_t counts[2] = {};
  const uint32_t* gnu_hash = nullptr;
  const uint16_t* versions = nullptr;
  const ElfW(Verneed) * needed_versions = nullptr;
  size_t needed_files = 0;
  std::string_view soname;

  bool holds(const void* p) const {
    auto a = reinterpret_cast<uintptr_t>(p);
    return a >= begin && a < end;
  }
};

// False for objects without dynamic symbols.
bool describe(const dl_phdr_info* info, ElfObject* out);

// The address of the default version of a function defined in `object`, or null.
void* defined_function(const ElfObject& object, const char* name);

// The library (its soname) from which an imported symbol must come; "" if any will do, as without versions.
std::string_view required_library(const ElfObject& object, uint32_t symbol);

// Whether `at` is where a version of the function is defined in `object`.
bool defines_at(const ElfObject& object, const char* name, const void* at);

// The address of the PLT entry that a non-PIC program uses for a function it imports, or null.
void* canonical_plt(const ElfObject& program, const char* name);

// Symbols are numbered: first those which an object only imports, then those which its hash table knows. How many are
// of the first kind, or 0 where it has no such table.
uint32_t imported_symbols(const ElfObject& object);

// The number of a symbol of that name which the hash table knows, or 0.
uint32_t hashed_symbol(const ElfObject& object, const char* name);

enum class SlotKind { kCall, kPointer };  // called through, or data of the program's own

// Calls visit(slot, number of the symbol, kind) for every relocation that holds a function's address.
template <typename Visit>
void for_each_slot(const ElfObject& object, Visit visit) {
#if defined(__x86_64__)
  constexpr uint32_t kJump = R_X86_64_JUMP_SLOT, kData = R_X86_64_GLOB_DAT, kPointer = R_X86_64_64;
#elif defined(__aarch64__)
  constexpr uint32_t kJump = R_AARCH64_JUMP_SLOT, kData = R_AARCH64_GLOB_DAT, kPointer = R_AARCH64_ABS64;
#else
#error "no interception for this processor: list its relocations here"
#endif
  for (int table = 0; table < 2; ++table) {
    const ElfW(Rela)* rela = object.tables[table];
    for (size_t i = 0; i < object.counts[table]; ++i) {
      auto type = uint32_t(ELF64_R_TYPE(rela[i].r_info));
      if (type != kJump && type != kData && (type != kPointer || rela[i].r_addend != 0)) continue;
      auto index = ELF64_R_SYM(rela[i].r_info);
      if (index == 0) continue;
      visit(reinterpret_cast<void**>(object.base + rela[i].r_offset), uint32_t(index),
            type == kPointer ? SlotKind::kPointer : SlotKind::kCall);
    }
  }
}

}  // namespace dft
