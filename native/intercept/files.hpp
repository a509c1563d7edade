// Which file a path or descriptor of the traced program refers to. Nothing here allocates from the heap or locks:
// it runs inside the program's calls, in its signal handlers and after its forks.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string_view>

#include "intercept/data_dirs.hpp"

namespace dft {

// One descriptor. The text is kept because a file is recorded under the name it was opened with, whatever
// happens to the name later. Threads that open files at the same time get neighbouring numbers: each has a cache line
// of its own.
struct alignas(64) Descriptor {
  enum State : uint32_t { kUnknown, kNotTraced, kTraced };
  std::atomic<uint64_t> hash;
  std::atomic<uint32_t> state;
  std::atomic<uint32_t> announced;  // the generation whose trace has the file's name
  std::atomic<char*> text;
  std::atomic<uint32_t> length;
  uint32_t capacity;
};
static_assert(sizeof(Descriptor) == 64);

extern Descriptor* g_descriptors;
extern uint32_t g_descriptor_count;

struct File {
  uint64_t hash = 0;  // 0: not traced
  Descriptor* descriptor = nullptr;
  std::atomic<uint64_t>* announced = nullptr;  // of a path: which name is in which generation's trace
  uint64_t key = 0;
  explicit operator bool() const { return hash != 0; }
};

inline constexpr uint32_t kMaxPath = 4096;

// An absolute path on the stack of a call, or the program's own text if that is absolute.
struct PathText {
  uint32_t length = 0;
  const char* given = nullptr;
  char text[kMaxPath + 1];
  std::string_view view() const { return {given ? given : text, length}; }
};

bool prepare_files(const DataDirs& dirs);
// Forgets all descriptors and paths.
void forget_files();

// The file that a path given by the program refers to, relative to `dirfd`. Writes its absolute text.
File file_of_path(int dirfd, const char* path, PathText* text);
// The slow path of file_of: asks the kernel what an unknown descriptor is.
File resolve_descriptor(int fd);
// True the first time a file appears in the current trace.
bool first_in_trace(uint64_t hash, std::string_view path, uint32_t generation);
inline bool first_in_trace(const File& file, uint32_t generation) {
  uint64_t mark = file.key + generation;
  if (__builtin_expect(file.announced->load(std::memory_order_relaxed) == mark, 1)) return false;
  return file.announced->exchange(mark, std::memory_order_relaxed) != mark;
}
// Undoes that: its name could not be written.
void not_in_trace(std::string_view path);

inline Descriptor* descriptor(int fd) {
  return __builtin_expect(uint32_t(fd) < g_descriptor_count, 1) ? &g_descriptors[fd] : nullptr;
}

inline File file_of(int fd) {
  Descriptor* d = descriptor(fd);
  if (__builtin_expect(d != nullptr, 1)) {
    uint32_t state = d->state.load(std::memory_order_acquire);
    if (state == Descriptor::kNotTraced) return {};
    if (state == Descriptor::kTraced) return {d->hash.load(std::memory_order_relaxed), d};
  }
  return resolve_descriptor(fd);
}

// The same, in registers.
struct FileOf {
  uint64_t hash;
  Descriptor* descriptor;
  __attribute__((always_inline)) explicit FileOf(int fd) : hash(0), descriptor(dft::descriptor(fd)) {
    uint32_t state = descriptor ? descriptor->state.load(std::memory_order_acquire) : uint32_t(Descriptor::kUnknown);
    if (__builtin_expect(state == Descriptor::kTraced, 1)) {
      hash = descriptor->hash.load(std::memory_order_relaxed);
    } else if (state == Descriptor::kUnknown) {
      File file = resolve_descriptor(fd);
      hash = file.hash;
      descriptor = file.descriptor;
    }
  }
};

void set_descriptor(int fd, File file, std::string_view text, uint32_t announced);
void copy_descriptor(int from, int to);
inline void clear_descriptor(int fd) {
  if (Descriptor* d = descriptor(fd)) d->state.store(Descriptor::kUnknown, std::memory_order_relaxed);
}
void clear_descriptors(uint32_t first, uint32_t last);

void refresh_cwd();

// What is mapped where, for msync and munmap.
void note_mapping(const void* at, uint64_t hash);
uint64_t mapping_at(const void* at, bool forget);

}  // namespace dft
