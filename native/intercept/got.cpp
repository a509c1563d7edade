#include "intercept/got.hpp"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

namespace dft {
namespace {

#if defined(__x86_64__)
bool is_slot(uint32_t type) { return type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT; }
#elif defined(__aarch64__)
bool is_slot(uint32_t type) { return type == R_AARCH64_JUMP_SLOT || type == R_AARCH64_GLOB_DAT; }
#else
bool is_slot(uint32_t) { return false; }
#endif

struct Request {
  const std::vector<GotPatch>* patches;
  const std::function<bool(std::string_view)>* wanted;
  int changed;
};

bool store_slot(void** slot, void* value) {
  // RELRO made the page read-only after relocation; its neighbours in the same page keep that in the end.
  uintptr_t page = reinterpret_cast<uintptr_t>(slot) & ~uintptr_t(sysconf(_SC_PAGESIZE) - 1);
  size_t size = size_t(sysconf(_SC_PAGESIZE));
  if (mprotect(reinterpret_cast<void*>(page), size, PROT_READ | PROT_WRITE) != 0) return false;
  reinterpret_cast<std::atomic<void*>*>(slot)->store(value, std::memory_order_release);
  return true;
}

void patch_table(const dl_phdr_info* info, const ElfW(Rela)* rela, size_t count, const ElfW(Sym)* symbols,
                 const char* strings, Request* request) {
  for (size_t i = 0; i < count; ++i) {
    if (!is_slot(uint32_t(ELF64_R_TYPE(rela[i].r_info)))) continue;
    const char* name = strings + symbols[ELF64_R_SYM(rela[i].r_info)].st_name;
    for (const GotPatch& patch : *request->patches) {
      if (strcmp(name, patch.symbol) != 0) continue;
      auto** slot = reinterpret_cast<void**>(info->dlpi_addr + rela[i].r_offset);
      if (*slot != patch.replacement && store_slot(slot, patch.replacement)) ++request->changed;
    }
  }
}

int visit(dl_phdr_info* info, size_t, void* data) {
  auto* request = static_cast<Request*>(data);
  if (!(*request->wanted)(info->dlpi_name ? info->dlpi_name : "")) return 0;
  const ElfW(Dyn)* dyn = nullptr;
  for (int i = 0; i < info->dlpi_phnum; ++i)
    if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
      dyn = reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
  if (!dyn) return 0;
  const ElfW(Sym)* symbols = nullptr;
  const char* strings = nullptr;
  const ElfW(Rela)*plt = nullptr, *rela = nullptr;
  size_t plt_size = 0, rela_size = 0;
  for (; dyn->d_tag != DT_NULL; ++dyn) {
    switch (dyn->d_tag) {
      case DT_SYMTAB: symbols = reinterpret_cast<const ElfW(Sym)*>(dyn->d_un.d_ptr); break;
      case DT_STRTAB: strings = reinterpret_cast<const char*>(dyn->d_un.d_ptr); break;
      case DT_JMPREL: plt = reinterpret_cast<const ElfW(Rela)*>(dyn->d_un.d_ptr); break;
      case DT_PLTRELSZ: plt_size = dyn->d_un.d_val; break;
      case DT_RELA: rela = reinterpret_cast<const ElfW(Rela)*>(dyn->d_un.d_ptr); break;
      case DT_RELASZ: rela_size = dyn->d_un.d_val; break;
    }
  }
  if (!symbols || !strings) return 0;
  if (plt) patch_table(info, plt, plt_size / sizeof(ElfW(Rela)), symbols, strings, request);
  if (rela) patch_table(info, rela, rela_size / sizeof(ElfW(Rela)), symbols, strings, request);
  return 0;
}

}  // namespace

int patch_got(const std::vector<GotPatch>& patches, const std::function<bool(std::string_view)>& wanted) {
  Request request{&patches, &wanted, 0};
  dl_iterate_phdr(visit, &request);
  return request.changed;
}

}  // namespace dft
