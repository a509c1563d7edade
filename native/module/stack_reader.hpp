// Reads the Python stack of another thread from outside: without the interpreter lock, and without the thread's help,
// so also while it holds the lock or hangs. Memory is copied by the kernel, which refuses what is not mapped; what
// changed meanwhile is recognised by its type, or shows as a frame that is not there. CPython 3.11 to 3.14.
//
// The thread may be one of another process that runs the same build of Python, if the kernel lets us read its memory:
// a child's as a rule, any of the same user's where ptrace is not restricted.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "module/cpython_util.hpp"

namespace dft::py {

struct StackFrame {
  std::string_view function;  // without what encloses it: `log`, `Trainer.log`
  std::string_view file;      // as the code says; valid until the next read
  int line;
};

// The memory of a process whose Python was loaded `shift` bytes from where ours was.
struct Memory {
  pid_t pid = getpid();
  intptr_t shift = 0;

  // Of a process that runs the same Python; nothing if it does not, or is gone.
  static std::optional<Memory> of(pid_t pid);
  bool copy(void* to, const void* from, size_t size) const;
  template <typename T>
  bool copy(T& to, const void* from) const {
    return copy(&to, from, sizeof(T));
  }
  template <typename T>
  T* theirs(T* ours) const {
    return reinterpret_cast<T*>(reinterpret_cast<intptr_t>(ours) + shift);
  }
};

struct PythonThread {
  PyThreadState* state;  // an address in that process
  int64_t tid;
};
// The threads of the main interpreter.
std::vector<PythonThread> python_threads(const Memory& memory);

class StackReader {
 public:
  explicit StackReader(Memory memory = {}) : memory_(memory) {}
  // The frames of `thread`, innermost first, `most` of them. Empty if it runs no Python, or cannot be read.
  const std::vector<StackFrame>& read(PyThreadState* thread, size_t most);

 private:
  struct Code {
    const void *name = nullptr, *lines = nullptr;  // to tell it from another that lies at the same place
    int first_line = 0;
    std::string function, file, table;
  };
  const Code* code_at(const void* frame, const void* at);
  bool copy_text(std::string& to, const void* from) const;
  bool copy_bytes(std::string& to, const void* from) const;

  Memory memory_;
  std::unordered_map<const void*, Code> codes_;
  std::unordered_map<const void*, const void*> before_;  // frame -> its code, when it was last seen
  std::vector<StackFrame> frames_;
};

}  // namespace dft::py
