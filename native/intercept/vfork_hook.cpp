// vfork returns twice on one stack, and the child overwrites what lies below the caller's frame. A wrapper written in
// C++ would return into ruins; these keep the return address and the start time in registers, which the kernel
// preserves, and make the system call themselves.
#include "intercept/process_calls.hpp"

namespace dft {

extern "C" {
__attribute__((visibility("hidden"))) void* dft_real_vfork = nullptr;

// Returns the start time, or 0 if nothing is recorded. From here until the child has execed or exited, calls of
// this thread are the child's, made in our memory.
__attribute__((visibility("hidden"))) uint64_t dft_before_vfork() {
  uint64_t start = io_active() ? ticks() : 0;
  tls_io_off += kLocked;
  return start;
}

__attribute__((visibility("hidden"))) int dft_after_vfork(int pid, uint64_t start) {
  tls_io_off -= kLocked;
  if (start && io_active()) {
    Finished done;
    record_call(Call::vfork_, start, done, pid, pid == -1 ? done.error() : 0, Values());
  }
  return pid;
}

__attribute__((visibility("hidden"))) int dft_vfork();
}

#if defined(__x86_64__)
asm(R"(
.text
.hidden dft_vfork
.type dft_vfork,@function
dft_vfork:
  .cfi_startproc
  endbr64
  subq $8, %rsp
  call dft_before_vfork
  addq $8, %rsp
  popq %rdi
  movq %rax, %rsi
  movl $58, %eax
  syscall
  pushq %rdi
  testq %rax, %rax
  jz 1f
  cmpq $-4095, %rax
  jb 2f
  negl %eax
  pushq %rax
  pushq %rsi
  subq $8, %rsp
  call __errno_location@PLT
  addq $8, %rsp
  popq %rsi
  popq %rcx
  movl %ecx, (%rax)
  movl $-1, %eax
2:
  movl %eax, %edi
  jmp dft_after_vfork
1:
  ret
  .cfi_endproc
.size dft_vfork, .-dft_vfork
)");
#elif defined(__aarch64__)
// There vfork is clone(CLONE_VM | CLONE_VFORK | SIGCHLD), and the return address is in a register from the start.
asm(R"(
.text
.hidden dft_vfork
.type dft_vfork,%function
dft_vfork:
  .cfi_startproc
  hint #34
  stp x29, x30, [sp, #-16]!
  bl dft_before_vfork
  ldp x29, x30, [sp], #16
  mov x10, x0
  mov x0, #0x4111
  mov x1, xzr
  mov x2, xzr
  mov x3, xzr
  mov x4, xzr
  mov x8, #220
  svc #0
  cbz x0, 2f
  cmn x0, #4095
  b.cc 1f
  neg w9, w0
  stp x30, x10, [sp, #-32]!
  str x9, [sp, #16]
  bl __errno_location
  ldr x9, [sp, #16]
  str w9, [x0]
  ldp x30, x10, [sp], #32
  mov x0, #-1
1:
  mov x1, x10
  b dft_after_vfork
2:
  ret
  .cfi_endproc
.size dft_vfork, .-dft_vfork
)");
#else
#error "no interception for this processor: write its vfork here"
#endif

void add_vfork_hook(std::vector<Hook>* out) {
  out->push_back({"vfork", reinterpret_cast<void*>(dft_vfork), &dft_real_vfork});
}

}  // namespace dft
