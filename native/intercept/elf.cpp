#include "intercept/elf.hpp"

#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace dft {
namespace {

template <typename Accept>
    const ElfW(Sym) * find_hashed(const ElfObject& o, const char* name, Accept accept) {
  if (!o.gnu_hash) return nullptr;
  uint32_t hash = 5381;
  for (const char* p = name; *p; ++p) hash = hash * 33 + uint8_t(*p);
  uint32_t buckets = o.gnu_hash[0], first = o.gnu_hash[1], words = o.gnu_hash[2], shift = o.gnu_hash[3];
  const auto* bloom = reinterpret_cast<const uint64_t*>(o.gnu_hash + 4);
  const uint32_t* bucket = reinterpret_cast<const uint32_t*>(bloom + words);
  const uint32_t* chain = bucket + buckets;
  if (buckets == 0 || words == 0) return nullptr;
  uint64_t word = bloom[(hash / 64) % words];
  if (!((word >> (hash % 64)) & (word >> ((hash >> shift) % 64)) & 1)) return nullptr;
  uint32_t i = bucket[hash % buckets];
  if (i < first) return nullptr;
  for (;; ++i) {
    uint32_t h = chain[i - first];
    const ElfW(Sym) & s = o.symbols[i];
    if ((h | 1) == (hash | 1) && strcmp(o.strings + s.st_name, name) == 0 && accept(i, s)) return &s;
    if (h & 1) return nullptr;
  }
}

}  // namespace

bool describe(const dl_phdr_info* info, ElfObject* out) {
  *out = {};
  out->path = info->dlpi_name ? info->dlpi_name : "";
  out->base = info->dlpi_addr;
  out->begin = UINTPTR_MAX;
  const ElfW(Dyn)* dyn = nullptr;
  uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr) & p = info->dlpi_phdr[i];
    uintptr_t at = info->dlpi_addr + p.p_vaddr;
    if (p.p_type == PT_DYNAMIC) dyn = reinterpret_cast<const ElfW(Dyn)*>(at);
    if (p.p_type == PT_LOAD) {
      out->begin = std::min(out->begin, at);
      out->end = std::max(out->end, at + p.p_memsz);
    }
    if (p.p_type == PT_GNU_RELRO) {
      out->relro_begin = at & ~(page - 1);
      out->relro_end = (at + p.p_memsz) & ~(page - 1);  // the loader protects whole pages only
    }
  }
  if (!dyn) return false;
  bool rela_plt = true;
  size_t soname = 0;
  uintptr_t needed_versions = 0;
  size_t relative = 0;  // at the start of the table, where linkers put them: they name no symbol
  for (; dyn->d_tag != DT_NULL; ++dyn) {
    auto* at = reinterpret_cast<const void*>(dyn->d_un.d_ptr);
    switch (dyn->d_tag) {
      case DT_SYMTAB: out->symbols = static_cast<const ElfW(Sym)*>(at); break;
      case DT_STRTAB: out->strings = static_cast<const char*>(at); break;
      case DT_GNU_HASH: out->gnu_hash = static_cast<const uint32_t*>(at); break;
      case DT_VERSYM: out->versions = static_cast<const uint16_t*>(at); break;
      case DT_VERNEED: needed_versions = dyn->d_un.d_ptr; break;
      case DT_VERNEEDNUM: out->needed_files = dyn->d_un.d_val; break;
      case DT_SONAME: soname = dyn->d_un.d_val; break;
      case DT_PLTREL: rela_plt = dyn->d_un.d_val == DT_RELA; break;
      case DT_JMPREL: out->tables[0] = static_cast<const ElfW(Rela)*>(at); break;
      case DT_PLTRELSZ: out->counts[0] = dyn->d_un.d_val / sizeof(ElfW(Rela)); break;
      case DT_RELA: out->tables[1] = static_cast<const ElfW(Rela)*>(at); break;
      case DT_RELACOUNT: relative = dyn->d_un.d_val; break;
      case DT_RELASZ: out->counts[1] = dyn->d_un.d_val / sizeof(ElfW(Rela)); break;
    }
  }
  if (!rela_plt) out->counts[0] = 0;
  if (out->tables[1] && relative <= out->counts[1]) {
    out->tables[1] += relative;
    out->counts[1] -= relative;
  }
  for (int i = 0; i < 2; ++i)
    if (!out->tables[i]) out->counts[i] = 0;
  // The vDSO keeps offsets where all others keep addresses; it calls no other object.
  bool addresses = reinterpret_cast<uintptr_t>(out->symbols) >= out->begin &&
                   reinterpret_cast<uintptr_t>(out->strings) >= out->begin;
  if (addresses && soname) out->soname = out->strings + soname;
  // The loader turns the other entries into addresses, but leaves this one as it is in the file.
  if (needed_versions && needed_versions < out->begin) needed_versions += out->base;
  out->needed_versions = reinterpret_cast<const ElfW(Verneed)*>(needed_versions);
  return out->symbols && out->strings && addresses;
}

void* defined_function(const ElfObject& o, const char* name) {
  constexpr uint16_t kOldVersion = 0x8000;
  const ElfW(Sym)* s = find_hashed(o, name, [&](uint32_t i, const ElfW(Sym) & s) {
    return s.st_shndx != SHN_UNDEF && ELF64_ST_TYPE(s.st_info) == STT_FUNC &&
           !(o.versions && (o.versions[i] & kOldVersion));
  });
  return s ? reinterpret_cast<void*>(o.base + s->st_value) : nullptr;
}

std::string_view required_library(const ElfObject& o, uint32_t symbol) {
  constexpr uint16_t kNumber = 0x7fff;
  if (!o.versions || !o.needed_versions) return "";
  uint16_t version = o.versions[symbol] & kNumber;
  auto* file = reinterpret_cast<const char*>(o.needed_versions);
  for (size_t i = 0; i < o.needed_files; ++i) {
    auto* need = reinterpret_cast<const ElfW(Verneed)*>(file);
    const char* at = file + need->vn_aux;
    for (uint16_t k = 0; k < need->vn_cnt; ++k) {
      auto* aux = reinterpret_cast<const ElfW(Vernaux)*>(at);
      if ((aux->vna_other & kNumber) == version) return o.strings + need->vn_file;
      at += aux->vna_next;
    }
    file += need->vn_next;
  }
  return "";
}

bool defines_at(const ElfObject& o, const char* name, const void* at) {
  return find_hashed(o, name, [&](uint32_t, const ElfW(Sym) & s) {
           return s.st_shndx != SHN_UNDEF && ELF64_ST_TYPE(s.st_info) == STT_FUNC &&
                  reinterpret_cast<void*>(o.base + s.st_value) == at;
         }) != nullptr;
}

uint32_t imported_symbols(const ElfObject& o) {
  if (!o.gnu_hash) return 0;
  uint32_t buckets = o.gnu_hash[0], first = o.gnu_hash[1], words = o.gnu_hash[2];
  const uint32_t* bucket = reinterpret_cast<const uint32_t*>(reinterpret_cast<const uint64_t*>(o.gnu_hash + 4) + words);
  // An empty table does not say where it would begin.
  return std::any_of(bucket, bucket + buckets, [](uint32_t b) { return b != 0; }) ? first : 0;
}

uint32_t hashed_symbol(const ElfObject& o, const char* name) {
  const ElfW(Sym)* s = find_hashed(o, name, [](uint32_t, const ElfW(Sym) &) { return true; });
  return s ? uint32_t(s - o.symbols) : 0;
}

void* canonical_plt(const ElfObject& o, const char* name) {
  const ElfW(Sym)* s =
      find_hashed(o, name, [](uint32_t, const ElfW(Sym) & s) { return s.st_shndx == SHN_UNDEF && s.st_value != 0; });
  return s ? reinterpret_cast<void*>(o.base + s->st_value) : nullptr;
}

}  // namespace dft
