#include "module/stack_reader.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>

namespace dft::py {
namespace {

#if PY_VERSION_HEX < 0x030F0000

// The beginning of `_PyInterpreterFrame`, which only CPython's internal headers describe.
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
#if PY_VERSION_HEX < 0x030E0000
  int stack_top;
#else
  void* stack_top;
#ifdef Py_GIL_DISABLED
  int32_t copy_of_bytecode;
#endif
#endif
  uint16_t return_offset;
  char owner;
#endif
};
constexpr char kOwnedByInterpreter = 3;  // from here on: no frame of a function

// Since 3.14 the lowest bits of a reference say who counts it.
const void* code_of(const InterpreterFrame& frame) {
  return reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(frame.code) & ~uintptr_t{3});
}

// Where the instructions begin that a frame runs. Without the interpreter lock each thread has a copy of its own.
const char* bytecode_of(const Memory& memory, const InterpreterFrame& frame, const void* code) {
  const char* begin = static_cast<const char*>(code) + offsetof(PyCodeObject, co_code_adaptive);
#if PY_VERSION_HEX >= 0x030E0000 && defined(Py_GIL_DISABLED)
  const _PyCodeArray* copies = nullptr;
  if (frame.copy_of_bytecode <= 0 ||
      !memory.copy(&copies, static_cast<const char*>(code) + offsetof(PyCodeObject, co_tlbc), sizeof copies))
    return begin;
  const char* own = nullptr;
  const char* entry = reinterpret_cast<const char*>(copies) + offsetof(_PyCodeArray, entries) +
                      size_t(frame.copy_of_bytecode) * sizeof(char*);
  if (copies && memory.copy(&own, entry, sizeof own) && own) return own;
#else
  (void)memory, (void)frame;
#endif
  return begin;
}

constexpr size_t kLongestText = 4096, kLongestTable = 1 << 20, kMaxCodes = 20'000;

// Frames lie close together: a page of them is copied at once.
class Pages {
 public:
  explicit Pages(const Memory& memory) : memory_(memory) {}
  template <typename T>
  bool copy(T& to, const void* from) {
    auto at = reinterpret_cast<uintptr_t>(from);
    uintptr_t page = at & ~(kPage - 1);
    if (at + sizeof to > page + kPage) return memory_.copy(to, from);
    if (page != held_) {
      held_ = 0;
      if (!memory_.copy(bytes_, reinterpret_cast<const void*>(page), kPage)) return false;
      held_ = page;
    }
    memcpy(&to, bytes_ + (at - page), sizeof to);
    return true;
  }

 private:
  static constexpr uintptr_t kPage = 4096;
  const Memory& memory_;
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

const InterpreterFrame* innermost(const Memory& memory, PyThreadState* thread) {
#if PY_VERSION_HEX >= 0x030D0000
  const InterpreterFrame* frame = nullptr;
  return memory.copy(frame, &thread->current_frame) ? frame : nullptr;
#else
  const void* c_frame = nullptr;
  _PyCFrame held;
  if (!memory.copy(c_frame, &thread->cframe) || !c_frame || !memory.copy(held, c_frame)) return nullptr;
  return reinterpret_cast<const InterpreterFrame*>(held.current_frame);
#endif
}

// Where the interpreter keeps the first of its threads. Only internal headers say; so it is found in ours.
size_t offset_of_threads(PyInterpreterState* interpreter) {
  constexpr size_t kFar = 16 << 10;
  static std::atomic<size_t> known{0};
  PyThreadState* first = PyInterpreterState_ThreadHead(interpreter);
  auto holds_it = [&](size_t at) {
    PyThreadState* found = nullptr;
    return Memory().copy(found, reinterpret_cast<const char*>(interpreter) + at) && found == first;
  };
  if (size_t at = known.load(); at && holds_it(at)) return at;
  for (size_t at = sizeof(void*); first && at < kFar; at += sizeof(void*)) {
    if (!holds_it(at)) continue;
    known.store(at);
    return at;
  }
  return 0;
}

#endif

struct Mapped {
  uintptr_t begin;
  std::string device, file_number;
};

// Where the file that `address` of ours lies in begins in the memory of a process.
std::optional<uintptr_t> begin_of_python(pid_t pid, const Mapped* same_as, Mapped* found) {
  std::string name = "/proc/" + std::to_string(pid) + "/maps";
  FILE* maps = fopen(name.c_str(), "re");
  if (!maps) return std::nullopt;
  auto wanted = reinterpret_cast<uintptr_t>(&PyUnicode_Type);
  std::vector<Mapped> firsts;
  std::optional<uintptr_t> out;
  char line[4096 + 256], device[32], file_number[32];
  unsigned long begin, end;
  while (!out && fgets(line, sizeof line, maps)) {
    if (sscanf(line, "%lx-%lx %*s %*s %31s %31s", &begin, &end, device, file_number) != 4) continue;
    bool anonymous = file_number[0] == '0';
    if (same_as) {
      if (same_as->device == device && same_as->file_number == file_number) out = begin;
      continue;
    }
    // The zeroed end of a file's data is anonymous, and follows it.
    if (!anonymous && (firsts.empty() || firsts.back().device != device || firsts.back().file_number != file_number))
      firsts.push_back({begin, device, file_number});
    if (begin <= wanted && wanted < end && !firsts.empty()) {
      *found = firsts.back();
      out = found->begin;
    }
  }
  fclose(maps);
  return out;
}

}  // namespace

bool Memory::copy(void* to, const void* from, size_t size) const {
  iovec local{to, size}, remote{const_cast<void*>(from), size};
  return process_vm_readv(pid, &local, 1, &remote, 1, 0) == ssize_t(size);
}

std::optional<Memory> Memory::of(pid_t pid) {
  if (pid == getpid()) return Memory{};
  Mapped ours;
  auto here = begin_of_python(getpid(), nullptr, &ours);
  auto there = here ? begin_of_python(pid, &ours, nullptr) : std::nullopt;
  if (!there) return std::nullopt;
  return Memory{pid, intptr_t(*there - *here)};
}

std::vector<PythonThread> python_threads(const Memory& memory) {
  std::vector<PythonThread> out;
#if PY_VERSION_HEX < 0x030F0000
  constexpr size_t kMax = 512;
  PyInterpreterState* main = PyInterpreterState_Main();  // part of the interpreter's static data
  size_t at = main ? offset_of_threads(main) : 0;
  PyThreadState* thread = nullptr;
  if (!at || !memory.copy(thread, reinterpret_cast<const char*>(memory.theirs(main)) + at)) return out;
  while (thread && out.size() < kMax) {
    unsigned long tid = 0;
    PyThreadState* next = nullptr;
    if (!memory.copy(tid, &thread->native_thread_id) || !memory.copy(next, &thread->next)) break;
    out.push_back({thread, int64_t(tid)});
    thread = next;
  }
#else
  (void)memory;
#endif
  return out;
}

#if PY_VERSION_HEX < 0x030F0000

bool StackReader::copy_text(std::string& to, const void* from) const {
  PyASCIIObject head;
  if (!memory_.copy(head, from) || head.ob_base.ob_type != memory_.theirs(&PyUnicode_Type) || !head.state.compact)
    return false;
  if (head.length < 0 || size_t(head.length) > kLongestText) return false;
  const char* data =
      static_cast<const char*>(from) + (head.state.ascii ? sizeof(PyASCIIObject) : sizeof(PyCompactUnicodeObject));
  size_t n = size_t(head.length), width = head.state.kind;
  std::string raw(n * width, '\0');
  if (!memory_.copy(raw.data(), data, raw.size())) return false;
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

bool StackReader::copy_bytes(std::string& to, const void* from) const {
  PyVarObject head;
  if (!memory_.copy(head, from) || head.ob_base.ob_type != memory_.theirs(&PyBytes_Type) || head.ob_size < 0 ||
      size_t(head.ob_size) > kLongestTable)
    return false;
  to.resize(size_t(head.ob_size));
  return memory_.copy(to.data(), static_cast<const char*>(from) + offsetof(PyBytesObject, ob_sval), to.size());
}

#endif

const StackReader::Code* StackReader::code_at(const void* frame, const void* at) {
#if PY_VERSION_HEX < 0x030F0000
  // A frame that had this code the last time keeps it alive.
  if (auto seen = before_.find(frame); seen != before_.end() && seen->second == at)
    if (auto known = codes_.find(at); known != codes_.end()) return &known->second;
  PyCodeObject now;
  if (!memory_.copy(now, at) || now.ob_base.ob_base.ob_type != memory_.theirs(&PyCode_Type)) return nullptr;
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
#if PY_VERSION_HEX < 0x030F0000
  if (codes_.size() > kMaxCodes) codes_.clear();
  if (before_.size() > kMaxCodes) before_.clear();
  Pages pages(memory_);
  const InterpreterFrame* at = innermost(memory_, thread);
  for (size_t steps = 0; at && frames_.size() < most && steps < 4 * most; ++steps) {
    InterpreterFrame frame;
    if (!pages.copy(frame, at)) break;
    const InterpreterFrame* here = at;
    at = frame.previous;
    const void* object = code_of(frame);
    if (frame.owner >= kOwnedByInterpreter || !object) continue;
    const Code* code = code_at(here, object);
    if (!code) break;
    int64_t unit = (frame.instruction - bytecode_of(memory_, frame, object)) / 2;
    frames_.push_back({code->function, code->file, line_of(code->table, code->first_line, unit < 0 ? 0 : unit)});
  }
#else
  (void)thread;
  (void)most;
#endif
  return frames_;
}

}  // namespace dft::py
