#include "module/stack_reader.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <cstring>

namespace dft::py {
namespace {

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000

// The begin of `_PyInterpreterFrame`, which only CPython's internal headers describe.
struct InterpreterFrame {
#if PY_VERSION_HEX < 0x030C0000
  void *function, *globals, *builtins, *locals;
  const void* code;
  void* frame_object;
  const InterpreterFrame* previous;
  const char* instruction;
  int stack_top;
  bool is_entry;
  char owner;
#else
  const void* code;
  const InterpreterFrame* previous;
  void *function, *globals, *builtins, *locals, *frame_object;
  const char* instruction;
  int stack_top;
  uint16_t return_offset;
  char owner;
#endif
};
constexpr char kOwnedByCStack = 3;

constexpr size_t kLongestText = 4096, kLongestTable = 1 << 20, kMostCodes = 20'000;

bool copy(void* to, const void* from, size_t size) {
  iovec local{to, size}, remote{const_cast<void*>(from), size};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == ssize_t(size);
}
template <typename T>
bool copy(T& to, const void* from) {
  return copy(&to, from, sizeof to);
}

// Frames lie close together: a page of them is copied at once.
class Pages {
 public:
  template <typename T>
  bool copy(T& to, const void* from) {
    auto at = reinterpret_cast<uintptr_t>(from);
    uintptr_t page = at & ~(kPage - 1);
    if (at + sizeof to > page + kPage) return py::copy(to, from);
    if (page != held_) {
      held_ = 0;
      if (!py::copy(bytes_, reinterpret_cast<const void*>(page), kPage)) return false;
      held_ = page;
    }
    memcpy(&to, bytes_ + (at - page), sizeof to);
    return true;
  }

 private:
  static constexpr uintptr_t kPage = 4096;
  uintptr_t held_ = 0;
  char bytes_[kPage];
};

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += char(c);
  } else if (c < 0x800) {
    out += {char(0xc0 | c >> 6), char(0x80 | (c & 0x3f))};
  } else if (c < 0x10000) {
    out += {char(0xe0 | c >> 12), char(0x80 | ((c >> 6) & 0x3f)), char(0x80 | (c & 0x3f))};
  } else {
    out += {char(0xf0 | c >> 18), char(0x80 | ((c >> 12) & 0x3f)), char(0x80 | ((c >> 6) & 0x3f)),
            char(0x80 | (c & 0x3f))};
  }
}

bool copy_text(std::string& to, const void* from) {
  PyASCIIObject head;
  if (!copy(head, from) || head.ob_base.ob_type != &PyUnicode_Type || !head.state.compact) return false;
  if (head.length < 0 || size_t(head.length) > kLongestText) return false;
  const char* data =
      static_cast<const char*>(from) + (head.state.ascii ? sizeof(PyASCIIObject) : sizeof(PyCompactUnicodeObject));
  size_t n = size_t(head.length), width = head.state.kind;
  std::string raw(n * width, '\0');
  if (!copy(raw.data(), data, raw.size())) return false;
  if (head.state.ascii) {
    to = std::move(raw);
    return true;
  }
  for (size_t i = 0; i < n; ++i) {
    uint32_t c = 0;
    memcpy(&c, raw.data() + i * width, width);
    append_utf8(to, c);
  }
  return true;
}

bool copy_bytes(std::string& to, const void* from) {
  PyVarObject head;
  if (!copy(head, from) || head.ob_base.ob_type != &PyBytes_Type || head.ob_size < 0 ||
      size_t(head.ob_size) > kLongestTable)
    return false;
  to.resize(size_t(head.ob_size));
  return copy(to.data(), static_cast<const char*>(from) + offsetof(PyBytesObject, ob_sval), to.size());
}

// The line of a code unit, by the location table of PEP 657 (Objects/locations.md in CPython).
int line_of(std::string_view table, int first_line, int64_t unit) {
  int line = first_line, found = first_line;
  size_t at = 0;
  auto byte = [&]() -> unsigned { return at < table.size() ? static_cast<unsigned char>(table[at++]) : 0; };
  auto varint = [&] {
    unsigned b = byte(), value = b & 63, shift = 0;
    while (b & 64 && at < table.size()) {
      b = byte();
      shift += 6;
      if (shift < 30) value |= (b & 63) << shift;
    }
    return value;
  };
  int64_t covered = 0;
  while (at < table.size() && covered <= unit) {
    unsigned first = byte(), code = (first >> 3) & 15;
    bool located = true;
    if (code >= 10 && code <= 12) {
      line += int(code - 10);
    } else if (code == 13 || code == 14) {
      unsigned delta = varint();
      line += delta & 1 ? -int(delta >> 1) : int(delta >> 1);
    } else if (code == 15) {
      located = false;
    }
    while (at < table.size() && !(static_cast<unsigned char>(table[at]) & 0x80)) ++at;
    covered += (first & 7) + 1;
    if (located) found = line;
  }
  return found;
}

const InterpreterFrame* innermost(PyThreadState* thread) {
#if PY_VERSION_HEX >= 0x030D0000
  const InterpreterFrame* frame = nullptr;
  return copy(frame, &thread->current_frame) ? frame : nullptr;
#else
  const void* c_frame = nullptr;
  _PyCFrame held;
  if (!copy(c_frame, &thread->cframe) || !c_frame || !copy(held, c_frame)) return nullptr;
  return reinterpret_cast<const InterpreterFrame*>(held.current_frame);
#endif
}

#endif

}  // namespace

const StackReader::Code* StackReader::code_at(const void* frame, const void* at) {
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000
  // A frame that had this code the last time keeps it alive.
  if (auto seen = before_.find(frame); seen != before_.end() && seen->second == at)
    if (auto known = codes_.find(at); known != codes_.end()) return &known->second;
  PyCodeObject now;
  if (!copy(now, at) || now.ob_base.ob_base.ob_type != &PyCode_Type) return nullptr;
  before_[frame] = at;
  Code& known = codes_[at];
  if (known.name == now.co_qualname && known.lines == now.co_linetable && known.first_line == now.co_firstlineno &&
      known.name)
    return &known;
  Code code;
  code.first_line = now.co_firstlineno;
  if (!copy_text(code.function, now.co_qualname) || !copy_text(code.file, now.co_filename) ||
      !copy_bytes(code.table, now.co_linetable))
    return nullptr;
  if (size_t inner = code.function.rfind("<locals>."); inner != std::string::npos) code.function.erase(0, inner + 9);
  code.name = now.co_qualname;
  code.lines = now.co_linetable;
  known = std::move(code);
  return &known;
#else
  (void)frame;
  (void)at;
  return nullptr;
#endif
}

const std::vector<StackFrame>& StackReader::read(PyThreadState* thread, size_t most) {
  frames_.clear();
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000
  if (codes_.size() > kMostCodes) codes_.clear();
  if (before_.size() > kMostCodes) before_.clear();
  Pages pages;
  const InterpreterFrame* at = innermost(thread);
  for (size_t steps = 0; at && frames_.size() < most && steps < 4 * most; ++steps) {
    InterpreterFrame frame;
    if (!pages.copy(frame, at)) break;
    const InterpreterFrame* here = at;
    at = frame.previous;
    if (frame.owner == kOwnedByCStack || !frame.code) continue;
    const Code* code = code_at(here, frame.code);
    if (!code) break;
    const char* begin = static_cast<const char*>(frame.code) + offsetof(PyCodeObject, co_code_adaptive);
    int64_t unit = (frame.instruction - begin) / 2;
    frames_.push_back({code->function, code->file, line_of(code->table, code->first_line, unit < 0 ? 0 : unit)});
  }
#else
  (void)thread;
  (void)most;
#endif
  return frames_;
}

}  // namespace dft::py
