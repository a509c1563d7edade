// Libraries loaded later. Whoever loads one asks for its functions next: by then it is patched. dlopen itself is
// left alone, because it looks at who called it (RPATH); so does dlsym, which therefore goes on by a jump and
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
  ++tls_io_off;
  patch_new_objects();
  --tls_io_off;
}

__attribute__((visibility("hidden"))) void* dft_dlsym(void*, const char*);
__attribute__((visibility("hidden"))) void* dft_dlvsym(void*, const char*, const char*);
}

#if defined(__x86_64__)
asm(R"(
.text
.hidden dft_dlsym
.type dft_dlsym,@function
dft_dlsym:
  .cfi_startproc
  endbr64
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  pushq %rsi
  .cfi_adjust_cfa_offset 8
  pushq %rdx
  .cfi_adjust_cfa_offset 8
  call dft_before_dlsym
  popq %rdx
  .cfi_adjust_cfa_offset -8
  popq %rsi
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  jmp *dft_real_dlsym(%rip)
  .cfi_endproc
.size dft_dlsym, .-dft_dlsym

.hidden dft_dlvsym
.type dft_dlvsym,@function
dft_dlvsym:
  .cfi_startproc
  endbr64
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  pushq %rsi
  .cfi_adjust_cfa_offset 8
  pushq %rdx
  .cfi_adjust_cfa_offset 8
  call dft_before_dlsym
  popq %rdx
  .cfi_adjust_cfa_offset -8
  popq %rsi
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  jmp *dft_real_dlvsym(%rip)
  .cfi_endproc
.size dft_dlvsym, .-dft_dlvsym
)");
#elif defined(__aarch64__)
asm(R"(
.text
.hidden dft_dlsym
.type dft_dlsym,%function
dft_dlsym:
  stp x0, x1, [sp, #-32]!
  stp x2, x30, [sp, #16]
  bl dft_before_dlsym
  ldp x2, x30, [sp, #16]
  ldp x0, x1, [sp], #32
  adrp x16, dft_real_dlsym
  ldr x16, [x16, #:lo12:dft_real_dlsym]
  br x16
.size dft_dlsym, .-dft_dlsym

.hidden dft_dlvsym
.type dft_dlvsym,%function
dft_dlvsym:
  stp x0, x1, [sp, #-32]!
  stp x2, x30, [sp, #16]
  bl dft_before_dlsym
  ldp x2, x30, [sp, #16]
  ldp x0, x1, [sp], #32
  adrp x16, dft_real_dlvsym
  ldr x16, [x16, #:lo12:dft_real_dlvsym]
  br x16
.size dft_dlvsym, .-dft_dlvsym
)");
#endif

void add_loader_hooks(std::vector<Hook>* out) {
  out->push_back({"dlsym", reinterpret_cast<void*>(dft_dlsym), &dft_real_dlsym});
  out->push_back({"dlvsym", reinterpret_cast<void*>(dft_dlvsym), &dft_real_dlvsym});
}

}  // namespace dft
