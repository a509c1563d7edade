// Libraries loaded later. A program that loads one looks up its functions next: by then it is patched. dlopen itself is
// left alone, because it depends on its caller (RPATH); so does dlsym, which is therefore entered by a jump and
// sees the return address of the real caller.
#include "intercept/hook_table.hpp"
#include "intercept/io_record.hpp"

namespace dft {
extern "C" {

__attribute__((visibility("hidden"))) void* dft_real_dlsym = nullptr;
__attribute__((visibility("hidden"))) void* dft_real_dlvsym = nullptr;

__attribute__((visibility("hidden"))) void dft_before_dlsym() {
  if (tls_io_off) return;
  Finished keep_errno;
  tls_io_off += kLocked;
  patch_new_objects();
  tls_io_off -= kLocked;
}

__attribute__((visibility("hidden"))) void* dft_dlsym(void*, const char*);
__attribute__((visibility("hidden"))) void* dft_dlvsym(void*, const char*, const char*);
}

// A function that looks for new libraries and then becomes the original, its up to three arguments untouched.
// clang-format off
#if defined(__x86_64__)
#define LOOK_AND_GO_ON(name, original)          \
  asm(".text\n"                                 \
      ".hidden " #name "\n"                     \
      ".type " #name ",@function\n" #name ":\n" \
      "  .cfi_startproc\n"                      \
      "  endbr64\n"                             \
      "  pushq %rdi\n"                          \
      "  .cfi_adjust_cfa_offset 8\n"            \
      "  pushq %rsi\n"                          \
      "  .cfi_adjust_cfa_offset 8\n"            \
      "  pushq %rdx\n"                          \
      "  .cfi_adjust_cfa_offset 8\n"            \
      "  call dft_before_dlsym\n"               \
      "  popq %rdx\n"                           \
      "  .cfi_adjust_cfa_offset -8\n"           \
      "  popq %rsi\n"                           \
      "  .cfi_adjust_cfa_offset -8\n"           \
      "  popq %rdi\n"                           \
      "  .cfi_adjust_cfa_offset -8\n"           \
      "  jmp *" #original "(%rip)\n"            \
      "  .cfi_endproc\n"                        \
      ".size " #name ", .-" #name "\n")
#elif defined(__aarch64__)
#define LOOK_AND_GO_ON(name, original)             \
  asm(".text\n"                                    \
      ".hidden " #name "\n"                        \
      ".type " #name ",%function\n" #name ":\n"    \
      "  hint #34\n"                               \
      "  stp x0, x1, [sp, #-32]!\n"                \
      "  stp x2, x30, [sp, #16]\n"                 \
      "  bl dft_before_dlsym\n"                    \
      "  ldp x2, x30, [sp, #16]\n"                 \
      "  ldp x0, x1, [sp], #32\n"                  \
      "  adrp x16, " #original "\n"                \
      "  ldr x16, [x16, #:lo12:" #original "]\n"   \
      "  br x16\n"                                 \
      ".size " #name ", .-" #name "\n")
#endif
// clang-format on

LOOK_AND_GO_ON(dft_dlsym, dft_real_dlsym);
LOOK_AND_GO_ON(dft_dlvsym, dft_real_dlvsym);

void add_loader_hooks(std::vector<Hook>* out) {
  out->push_back({"dlsym", reinterpret_cast<void*>(dft_dlsym), &dft_real_dlsym});
  out->push_back({"dlvsym", reinterpret_cast<void*>(dft_dlvsym), &dft_real_dlvsym});
}

}  // namespace dft
