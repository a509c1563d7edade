// Reads the Python stack of another thread from outside: without the interpreter lock, and without the thread's help,
// so also while it holds the lock or hangs. Memory is copied by the kernel, which refuses what is not mapped; what
// changed meanwhile is recognised by its type, or shows as a frame that is not there. CPython 3.11 to 3.13.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "module/seam.hpp"

namespace dft::py {

struct StackFrame {
  std::string_view function;  // without what encloses it: `log`, `Trainer.log`
  std::string_view file;      // as the code says; valid until the next read
  int line;
};

class StackReader {
 public:
  // The frames of `thread`, innermost first, `most` of them. Empty if it runs no Python, or cannot be read.
  const std::vector<StackFrame>& read(PyThreadState* thread, size_t most);

 private:
  struct Code {
    const void *name = nullptr, *lines = nullptr;  // to tell it from another that lies at the same place
    int first_line = 0;
    std::string function, file, table;
  };
  const Code* code_at(const void* frame, const void* at);

  std::unordered_map<const void*, Code> codes_;
  std::unordered_map<const void*, const void*> before_;  // frame -> its code, when it was last seen
  std::vector<StackFrame> frames_;
};

}  // namespace dft::py
