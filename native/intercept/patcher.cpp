#include "intercept/patcher.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bitset>
#include <cstring>
#include <mutex>
#include <set>

#include "intercept/elf.hpp"
#include "intercept/patched_page.hpp"
#include "record/sanitizer.hpp"

namespace dft {
namespace {

struct HookSet {
  std::vector<Hook> hooks;  // sorted by symbol
  uint32_t copies;          // rows for each symbol: see patch_copied_hooks()
  ObjectFilter wanted;
  std::bitset<4096> beginnings;
  std::set<uintptr_t> done;  // bases of the objects it was applied to, or does not concern
};

// Of the first three letters: most names are ruled out by them, especially those of C++.
uint32_t beginning(const char* name) {
  uint32_t h = 0;
  for (int i = 0; i < 3 && name[i]; ++i) h = h * 37 + uint8_t(name[i]);
  return h % 4096;
}

struct Patched {
  std::set<uintptr_t> objects;
  uint32_t slots = 0, refused = 0;

  PatchFacts facts() const { return {slots, uint32_t(objects.size()), refused}; }
};

struct Patcher {
  std::mutex mutex;
  std::vector<HookSet> sets;
  uint64_t seen_adds = 0, seen_subs = 0;
  Patched single, copied;

  Patched& by(const HookSet& set) { return set.copies > 1 ? copied : single; }
};

// Leaked: libraries may still be loaded while static destructors run. Made at load time: a fork during a first
// use would leave the child waiting for its end.
Patcher* const g_patcher = new Patcher;

Patcher& patcher() { return *g_patcher; }

bool is_ours(const ElfObject& o) {
  static int here;
  return o.holds(&here) || o.path.find("libdftracer_preload") != std::string_view::npos ||
         o.path.find("dftracer/_core.") != std::string_view::npos;
}

bool is_file(std::string_view path, std::string_view name) {
  size_t slash = path.rfind('/');
  return (slash == std::string_view::npos ? path : path.substr(slash + 1)).starts_with(name);
}

// The C library calls itself in other ways; sanitizer runtimes must not have their calls replaced.
bool is_runtime(std::string_view path) {
  for (std::string_view name : {"libc.so", "libc-2", "ld-linux", "ld-2", "libpthread", "libdl.so", "librt.so",
                                "libasan", "libtsan", "libubsan", "liblsan", "linux-vdso", "libclang_rt"})
    if (is_file(path, name)) return true;
  return false;
}

// What was taken from an allocator goes back to the same.
bool allocates(std::string_view name) {
  for (std::string_view each : {"malloc", "calloc", "realloc", "free", "reallocarray", "memalign", "posix_memalign",
                                "aligned_alloc", "valloc", "pvalloc", "malloc_usable_size"})
    if (name == each) return true;
  return false;
}

struct Scan {
  std::vector<ElfObject> objects;
  uint64_t adds = 0, subs = 0;
};

int collect(dl_phdr_info* info, size_t, void* data) {
  auto* scan = static_cast<Scan*>(data);
  scan->adds = info->dlpi_adds;
  scan->subs = info->dlpi_subs;
  ElfObject o;
  if (describe(info, &o)) scan->objects.push_back(o);
  return 0;
}

int only_count(dl_phdr_info* info, size_t, void* data) {
  *static_cast<uint64_t*>(data) = info->dlpi_adds;
  return 1;
}

const ElfObject* object_of(const std::vector<ElfObject>& objects, const void* p) {
  for (const ElfObject& o : objects)
    if (o.holds(p)) return &o;
  return nullptr;
}

void* find_original(const std::vector<ElfObject>& objects, const char* name) {
  for (const ElfObject& o : objects) {
    if (is_ours(o)) continue;
    if (void* p = defined_function(o, name)) return p;
  }
  return nullptr;
}

// Only what really leads to the original is replaced: not a library's own function of that name, nor
// another tool's interposition.
bool leads_to(const Hook& hook, void* value, const ElfW(Sym) & symbol, const ElfObject& user,
              const std::vector<ElfObject>& objects) {
  if (value == *hook.original) return true;
  if (symbol.st_shndx != SHN_UNDEF) return false;
  if (user.holds(value)) return true;  // not yet bound: the slot still points into the object's own PLT
  const ElfObject* home = object_of(objects, value);
  if (!home) return false;
  if (home->path.empty() || home == &objects.front()) return value == canonical_plt(*home, hook.symbol);
  return home->holds(*hook.original);  // another version of the function
}

// The function that a caller reaches through a slot; null if it is unknown, or not the one meant. A slot that
// is not yet bound leads to the only function of that name in the library which its version names. If there are
// several, only the loader knows which one: `unbound` says that the slot must be looked at again.
void* target_of(const char* name, void* value, const ElfObject& user, uint32_t symbol,
                const std::vector<ElfObject>& objects, bool* unbound) {
  if (!user.holds(value)) {
    const ElfObject* home = object_of(objects, value);
    return home && !is_ours(*home) && defines_at(*home, name, value) ? value : nullptr;
  }
  void* only = nullptr;
  std::string_view library = required_library(user, symbol);
  for (const ElfObject& o : objects) {
    if (is_ours(o) || (!library.empty() && o.soname != library)) continue;
    void* found = defined_function(o, name);
    if (!found || found == only) continue;
    if (only) {
      *unbound = true;
      return nullptr;
    }
    only = found;
  }
  return only;
}

// The row for this original: the one that has it, or a free one.
const Hook* row_for(const Hook* rows, uint32_t copies, void* original) {
  for (uint32_t i = 0; i < copies; ++i)
    if (*rows[i].original == original) return &rows[i];
  for (uint32_t i = 0; i < copies; ++i) {
    if (*rows[i].original) continue;
    __atomic_store_n(rows[i].original, original, __ATOMIC_RELEASE);
    return &rows[i];
  }
  return nullptr;
}

bool is_wrapper(const Hook* rows, uint32_t copies, const void* value) {
  return std::any_of(rows, rows + copies, [&](const Hook& h) { return h.wrapper == value; });
}

class Writable {
 public:
  explicit Writable(const ElfObject& o) : o_(o) {}
  bool store(void** slot, void* value) {
    auto at = reinterpret_cast<uintptr_t>(slot);
    if (at >= o_.relro_begin && at < o_.relro_end && !open_) {
      if (mprotect(reinterpret_cast<void*>(o_.relro_begin), o_.relro_end - o_.relro_begin, PROT_READ | PROT_WRITE) != 0)
        return false;
      open_ = true;
    }
    reinterpret_cast<std::atomic<void*>*>(slot)->store(value, std::memory_order_release);
    return true;
  }
  ~Writable() {
    if (open_) mprotect(reinterpret_cast<void*>(o_.relro_begin), o_.relro_end - o_.relro_begin, PROT_READ);
  }

 private:
  const ElfObject& o_;
  bool open_ = false;
};

const Hook* find_hook(const HookSet& set, const char* name) {
  if (!set.beginnings[beginning(name)]) return nullptr;
  auto it = std::lower_bound(set.hooks.begin(), set.hooks.end(), name,
                             [](const Hook& h, const char* n) { return strcmp(h.symbol, n) < 0; });
  return it != set.hooks.end() && strcmp(it->symbol, name) == 0 ? &*it : nullptr;
}

// Which symbols of an object lead to hooks. Most objects have few of them and tens of thousands of relocations:
// checking the names first means reading far less.
class HookedSymbols {
 public:
  HookedSymbols(const ElfObject& o, const HookSet& set) : o_(o), set_(set), imported_(imported_symbols(o)) {
    if (!imported_) return;
    for (uint32_t i = 1; i < imported_; ++i)
      if (const Hook* hook = find_hook(set, o.strings + o.symbols[i].st_name)) found_.push_back({i, hook});
    for (size_t row = 0; row < set.hooks.size(); row += set.copies)
      if (uint32_t i = hashed_symbol(o, set.hooks[row].symbol)) found_.push_back({i, &set.hooks[row]});
    std::sort(found_.begin(), found_.end());
  }
  bool none() const { return imported_ && found_.empty(); }
  const Hook* at(uint32_t symbol) const {
    if (!imported_) return find_hook(set_, o_.strings + o_.symbols[symbol].st_name);
    auto it = std::lower_bound(found_.begin(), found_.end(), std::pair<uint32_t, const Hook*>{symbol, nullptr});
    return it != found_.end() && it->first == symbol ? it->second : nullptr;
  }

 private:
  const ElfObject& o_;
  const HookSet& set_;
  uint32_t imported_;
  std::vector<std::pair<uint32_t, const Hook*>> found_;
};

Scan scan_objects() {
  Scan scan;
  scan.objects.reserve(256);
  dl_iterate_phdr(collect, &scan);
  return scan;
}

// True if it is to be looked at again.
bool patch_object(Patcher& p, const ElfObject& o, const HookSet& set, const std::vector<ElfObject>& objects) {
  HookedSymbols symbols(o, set);
  if (symbols.none()) return false;
  Writable writable(o);
  Patched& patched = p.by(set);
  bool any = false, unbound = false;
  for_each_slot(o, [&](void** slot, uint32_t index, SlotKind kind) {
    const Hook* hook = symbols.at(index);
    if (!hook) return;
    const ElfW(Sym) & symbol = o.symbols[index];
    void* value = reinterpret_cast<std::atomic<void*>*>(slot)->load(std::memory_order_relaxed);
    if (set.copies > 1) {
      if (kind != SlotKind::kCall || symbol.st_shndx != SHN_UNDEF || is_wrapper(hook, set.copies, value)) return;
      void* target = target_of(hook->symbol, value, o, index, objects, &unbound);
      if (!target) return;
      hook = row_for(hook, set.copies, target);
    } else if (!*hook->original || value == hook->wrapper || !leads_to(*hook, value, symbol, o, objects)) {
      return;
    }
    if (!hook || !writable.store(slot, hook->wrapper)) {
      ++patched.refused;
      return;
    }
    ++patched.slots;
    any = true;
  });
  if (any) patched.objects.insert(o.base);
  return unbound;
}

// The loader lists an object before it has relocated it, writes into it all that time, and then protects the pages that
// stay as they are. Protecting them earlier, as we do after a change, would end the program in the loader's next write.
bool relocated(const ElfObject& o) { return o.relro_begin >= o.relro_end || !page_writable(o.relro_begin); }

struct Pass {
  Patcher& p;
  size_t first;
  const std::vector<ElfObject>& objects;
  bool waiting = false;
};

// Inside dl_iterate_phdr: meanwhile no object is unmapped.
int patch_one(dl_phdr_info* info, size_t, void* data) {
  auto* pass = static_cast<Pass*>(data);
  ElfObject o;
  if (!describe(info, &o) || is_ours(o) || is_runtime(o.path)) return 0;
  for (size_t i = pass->first; i < pass->p.sets.size(); ++i) {
    HookSet& set = pass->p.sets[i];
    if (set.done.count(o.base)) continue;
    if (set.wanted(o.path)) {
      if (!relocated(o)) {
        pass->waiting = true;
        return 0;
      }
      if (patch_object(pass->p, o, set, pass->objects)) {
        pass->waiting = true;
        continue;
      }
    }
    set.done.insert(o.base);
  }
  return 0;
}

// Applies the sets from number `first` on to all objects.
void patch_sets(Patcher& p, size_t first) {
  Scan scan = scan_objects();
  if (scan.subs != p.seen_subs)  // another object may be where one was
    for (HookSet& set : p.sets) set.done.clear();
  for (size_t i = first; i < p.sets.size(); ++i) {
    HookSet& set = p.sets[i];
    if (set.copies > 1) continue;
    bool found = false;
    for (Hook& h : set.hooks)
      if (!*h.original) found |= (*h.original = find_original(scan.objects, h.symbol)) != nullptr;
    if (found) set.done.clear();
  }
  Pass pass{p, first, scan.objects};
  dl_iterate_phdr(patch_one, &pass);
  p.seen_subs = scan.subs;
  if (!pass.waiting) p.seen_adds = scan.adds;
}

bool same_hooks(const HookSet& set, const std::vector<Hook>& hooks) {
  return !hooks.empty() && std::any_of(set.hooks.begin(), set.hooks.end(),
                                       [&](const Hook& h) { return h.wrapper == hooks.front().wrapper; });
}

void add_set(const std::vector<Hook>& hooks, uint32_t copies, ObjectFilter wanted) {
  Patcher& p = patcher();
  std::lock_guard lock(p.mutex);
  std::erase_if(p.sets, [&](const HookSet& s) { return same_hooks(s, hooks); });
  HookSet set;
  set.hooks = hooks;
  set.copies = copies;
  set.wanted = wanted;
  std::stable_sort(set.hooks.begin(), set.hooks.end(),
                   [](const Hook& a, const Hook& b) { return strcmp(a.symbol, b.symbol) < 0; });
  for (const Hook& h : hooks) set.beginnings.set(beginning(h.symbol));
  p.sets.push_back(std::move(set));
  // Objects loaded meanwhile are not in the older sets yet.
  uint64_t adds = 0;
  dl_iterate_phdr(only_count, &adds);
  patch_sets(p, adds == p.seen_adds ? p.sets.size() - 1 : 0);
}

}  // namespace

void patch_hooks(const std::vector<Hook>& hooks, ObjectFilter wanted) { add_set(hooks, 1, wanted); }

void patch_copied_hooks(const std::vector<Hook>& hooks, uint32_t copies, ObjectFilter wanted) {
  add_set(hooks, copies, wanted);
}

void restore_hooks(const std::vector<Hook>& hooks) {
  Patcher& p = patcher();
  std::lock_guard lock(p.mutex);
  for (const HookSet& set : p.sets) {
    if (!same_hooks(set, hooks)) continue;
    // Looked up again, not remembered: a library may have been unloaded in between.
    Scan scan = scan_objects();
    for (const ElfObject& o : scan.objects) {
      if (is_ours(o)) continue;
      HookedSymbols symbols(o, set);
      if (symbols.none()) continue;
      Writable writable(o);
      for_each_slot(o, [&](void** slot, uint32_t index, SlotKind) {
        const Hook* rows = symbols.at(index);
        for (uint32_t i = 0; rows && i < set.copies; ++i)
          if (*slot == rows[i].wrapper && writable.store(slot, *rows[i].original)) --p.by(set).slots;
      });
    }
  }
  std::erase_if(p.sets, [&](const HookSet& s) { return same_hooks(s, hooks); });
  if (p.sets.empty()) p.single.objects.clear();
  if (std::none_of(p.sets.begin(), p.sets.end(), [](const HookSet& s) { return s.copies > 1; }))
    p.copied.objects.clear();
}

void patch_new_objects() {
  Patcher& p = patcher();
  uint64_t adds = 0;
  // Already locked for the scan: a fork in the middle of it would leave the loader's own lock held in the child.
  std::lock_guard lock(p.mutex);
  dl_iterate_phdr(only_count, &adds);
  if (adds != p.seen_adds && !p.sets.empty()) patch_sets(p, 0);
}

void call_libc_directly() {
  Patcher& p = patcher();
  std::lock_guard lock(p.mutex);
  Scan scan = scan_objects();
  auto libc = std::find_if(scan.objects.begin(), scan.objects.end(),
                           [](const ElfObject& o) { return is_file(o.path, "libc.so") || is_file(o.path, "libc-2"); });
  if (libc == scan.objects.end()) return;
  for (const ElfObject& o : scan.objects) {
    if (!is_ours(o)) continue;
    Writable writable(o);
    for_each_slot(o, [&](void** slot, uint32_t index, SlotKind) {
      const ElfW(Sym) & symbol = o.symbols[index];
      const char* name = o.strings + symbol.st_name;
      void* value = reinterpret_cast<std::atomic<void*>*>(slot)->load(std::memory_order_relaxed);
      if (symbol.st_shndx != SHN_UNDEF || libc->holds(value) || allocates(name)) return;
      if (void* own = defined_function(*libc, name)) writable.store(slot, own);
    });
  }
}

PatchFacts patch_facts() {
  Patcher& p = patcher();
  std::lock_guard lock(p.mutex);
  return p.single.facts();
}

PatchFacts copied_patch_facts() {
  Patcher& p = patcher();
  std::lock_guard lock(p.mutex);
  return p.copied.facts();
}

void lock_patcher() { patcher().mutex.lock(); }
void unlock_patcher() { patcher().mutex.unlock(); }

}  // namespace dft
