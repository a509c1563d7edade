// The slots through which libraries reach functions have other kinds of relocations on every processor.
#include <dlfcn.h>
#include <unistd.h>

#include <map>

#include "check.hpp"
#include "intercept/elf.hpp"
#include "intercept/patcher.hpp"

using namespace dft;

#if defined(__x86_64__)
constexpr uint32_t kCalled = 7, kAddress = 6, kKept = 1;
#elif defined(__aarch64__)
constexpr uint32_t kCalled = 1026, kAddress = 1025, kKept = 257;
#endif

using Function = pid_t (*)();

static pid_t wrapper() { return 4242; }

static Function function_of(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

static ElfObject loaded_fixture() {
  ElfObject found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        ElfObject object;
        if (!describe(info, &object) || object.path != RELOCATIONS) return 0;
        *static_cast<ElfObject*>(out) = object;
        return 1;
      },
      &found);
  return found;
}

TEST(a_call_an_address_and_a_pointer_are_told_apart) {
  REQUIRE(dlopen(RELOCATIONS, RTLD_LAZY | RTLD_LOCAL));
  ElfObject object = loaded_fixture();
  REQUIRE(object.symbols);
  auto name = [&](uint32_t symbol) { return std::string(object.strings + object.symbols[symbol].st_name); };
  std::map<std::string, uint32_t> types;
  for (int table = 0; table < 2; ++table)
    for (size_t i = 0; i < object.counts[table]; ++i)
      types[name(uint32_t(ELF64_R_SYM(object.tables[table][i].r_info)))] =
          uint32_t(ELF64_R_TYPE(object.tables[table][i].r_info));
  CHECK_EQ(types["getppid"], kCalled);
  CHECK_EQ(types["getpgrp"], kAddress);
  CHECK_EQ(types["getuid"], kKept);
  std::map<std::string, int> slots;
  for_each_slot(object, [&](void**, uint32_t symbol, SlotKind kind) { slots[name(symbol)] += 1 + 10 * int(kind); });
  CHECK_EQ(slots["getppid"], 1 + 10 * int(SlotKind::kCall));
  CHECK_EQ(slots["getpgrp"], 1 + 10 * int(SlotKind::kCall));
  // Some linkers fill the pointer by a second slot, of an address.
  CHECK_EQ(slots["getuid"] >= 1 + 10 * int(SlotKind::kPointer), true);
}

TEST(all_of_them_are_replaced_and_restored) {
  void* library = dlopen(RELOCATIONS, RTLD_LAZY | RTLD_LOCAL);
  REQUIRE(library);
  Function call = function_of(library, "call");
  auto address = reinterpret_cast<Function (*)()>(dlsym(library, "address"));
  auto* kept = static_cast<Function*>(dlsym(library, "kept"));
  REQUIRE(call && address && kept);
  static void* originals[3];
  auto* ours = reinterpret_cast<void*>(wrapper);
  std::vector<Hook> hooks = {
      {"getppid", ours, &originals[0]}, {"getpgrp", ours, &originals[1]}, {"getuid", ours, &originals[2]}};
  patch_hooks(hooks, [](std::string_view path) { return path == RELOCATIONS; });
  CHECK_EQ(call(), 4242);
  CHECK_EQ(address()(), 4242);
  CHECK_EQ((*kept)(), 4242);
  CHECK_EQ(getppid() == 4242, false);
  restore_hooks(hooks);
  CHECK_EQ(call(), getppid());
  CHECK_EQ(address()(), getpgrp());
  CHECK_EQ((*kept)(), pid_t(getuid()));
}

TEST_MAIN
