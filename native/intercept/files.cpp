#include "intercept/files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "format/md5.hpp"

namespace dft {

Descriptor* g_descriptors = nullptr;
uint32_t g_descriptor_count = 0;

namespace {

// Address space, not memory: pages appear when descriptors of that number do.
constexpr uint32_t kDescriptors = 1 << 20;
constexpr size_t kTextSpace = 64 << 20;
constexpr size_t kSmallest = 128;

std::atomic<uint32_t> g_highest{0};
char* g_text_space = nullptr;
size_t g_text_size = 0;
std::atomic<size_t> g_text_used{0};

DataDirs* g_dirs = nullptr;

// A cache of resolved paths: matching and MD5 cost once per path, not once per call.
struct KnownPath {
  std::atomic<uint64_t> key;
  std::atomic<uint64_t> hash;  // 0: not traced
  std::atomic<uint64_t> announced;
};
constexpr uint32_t kKnownPaths = 1 << 15;
KnownPath* g_known = nullptr;

struct Mapping {
  std::atomic<const void*> at;
  std::atomic<uint64_t> hash;
};
constexpr uint32_t kMappings = 1 << 12, kProbes = 16;
Mapping g_mappings[kMappings];

struct Cwd {
  std::atomic<uint32_t> version;  // odd while it changes
  uint32_t length;
  char text[kMaxPath + 1];
};
Cwd g_cwd;

void* address_space(size_t size) {
  void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}

uint64_t mix(uint64_t a, uint64_t b) {
  __uint128_t r = __uint128_t(a) * b;
  return uint64_t(r) ^ uint64_t(r >> 64);
}

uint64_t quick_hash(std::string_view s) {
  uint64_t h = 0x9e3779b97f4a7c15u ^ s.size();
  const char* p = s.data();
  size_t n = s.size();
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t w;
    memcpy(&w, p, 8);
    h = mix(h ^ w, 0xa0761d6478bd642fu);
  }
  // The last bytes, some of them for a second time if there are eight to load.
  uint64_t w = 0;
  if (s.size() >= 8) {
    memcpy(&w, s.data() + s.size() - 8, 8);
  } else {
    for (size_t i = 0; i < n; ++i) w = w << 8 | uint8_t(p[i]);
  }
  h = mix(h ^ w, 0xe7037ed1a0b428dbu);
  return h ? h : 1;
}

KnownPath* known_path(std::string_view path, uint64_t* key) {
  *key = quick_hash(path);
  return &g_known[*key & (kKnownPaths - 1)];
}

bool remembered(KnownPath* k, uint64_t key, File* out) {
  if (k->key.load(std::memory_order_acquire) != key) return false;
  uint64_t hash = k->hash.load(std::memory_order_acquire);
  if (k->key.load(std::memory_order_relaxed) != key) return false;
  *out = {hash, nullptr, &k->announced, key};
  return true;
}

File traced_file(std::string_view path) {
  uint64_t key;
  KnownPath* k = known_path(path, &key);
  File known;
  if (remembered(k, key, &known)) return known;
  uint64_t hash = 0;
  if (g_dirs && g_dirs->matches(path)) {
    hash = short_hash_bits(path);
    if (hash == 0) hash = 1;
  }
  k->key.store(0, std::memory_order_release);
  k->announced.store(0, std::memory_order_relaxed);
  k->hash.store(hash, std::memory_order_release);
  k->key.store(key, std::memory_order_release);
  return {hash, nullptr, &k->announced, key};
}

// The kernel's name for a descriptor; 0 if it has none (sockets, pipes, anonymous inodes).
uint32_t name_of_descriptor(int fd, char* out) {
  char link[32] = "/proc/self/fd/";
  char* p = link + 14;
  char digits[12];
  int n = 0;
  uint32_t v = uint32_t(fd);
  do digits[n++] = char('0' + v % 10);
  while (v /= 10);
  while (n) *p++ = digits[--n];
  *p = 0;
  long size = syscall(SYS_readlinkat, AT_FDCWD, link, out, long(kMaxPath));
  if (size <= 0 || out[0] != '/') return 0;
  constexpr std::string_view kDeleted = " (deleted)";
  std::string_view name(out, size_t(size));
  if (name.ends_with(kDeleted)) size -= long(kDeleted.size());
  return uint32_t(size);
}

uint32_t current_directory(char* out) {
  for (int i = 0; i < 4; ++i) {
    uint32_t before = g_cwd.version.load(std::memory_order_acquire);
    if (before == 0 || (before & 1)) break;
    uint32_t n = g_cwd.length;
    if (n > kMaxPath) break;
    memcpy(out, g_cwd.text, n);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (g_cwd.version.load(std::memory_order_relaxed) == before) return n;
  }
  long n = syscall(SYS_getcwd, out, long(kMaxPath));
  return n > 1 && out[0] == '/' ? uint32_t(n - 1) : 0;
}

uint32_t directory_text(int dirfd, char* out) {
  if (dirfd == AT_FDCWD) return current_directory(out);
  Descriptor* d = descriptor(dirfd);
  if (d && d->state.load(std::memory_order_acquire) == Descriptor::kTraced) {
    char* text = d->text.load(std::memory_order_relaxed);
    uint32_t n = d->length.load(std::memory_order_relaxed);
    if (text && n <= kMaxPath) {
      memcpy(out, text, n);
      return n;
    }
  }
  return name_of_descriptor(dirfd, out);
}

// Appends the components of `from` to the path in `out`, without empty and `.` ones. Sets *dots at `..`.
// 0 when it does not fit.
bool append_components(PathText* out, const char* from, bool* dots) {
  while (*from) {
    while (*from == '/') ++from;
    const char* end = from;
    while (*end && *end != '/') ++end;
    auto n = uint32_t(end - from);
    if (n == 0) break;
    if (!(n == 1 && from[0] == '.')) {
      if (out->length + n + 1 > kMaxPath) return false;
      out->text[out->length] = '/';
      memcpy(out->text + out->length + 1, from, n);
      out->length += n + 1;
      *dots |= n == 2 && from[0] == '.' && from[1] == '.';
    }
    from = end;
  }
  return true;
}

// `a/link/..` is not `a`: only the kernel knows where `..` leads.
void resolve_dots(PathText* path) {
  path->text[path->length] = 0;
  uint32_t cut = path->length;
  for (uint32_t i = path->length; i >= 3; --i) {
    if (memcmp(path->text + i - 3, "/..", 3) == 0 && (i == path->length || path->text[i] == '/')) {
      cut = i;
      break;
    }
  }
  char rest[kMaxPath + 1];
  uint32_t rest_length = path->length - cut;
  memcpy(rest, path->text + cut, rest_length);
  path->text[cut] = 0;
  auto fd = int(syscall(SYS_openat, AT_FDCWD, path->text, O_PATH | O_CLOEXEC, 0));
  uint32_t n = 0;
  if (fd >= 0) {
    n = name_of_descriptor(fd, path->text);
    syscall(SYS_close, fd);
  }
  if (n == 0) {
    // No such directory: remove the components textually.
    path->text[cut] = 0;
    uint32_t to = 0;
    for (uint32_t i = 0; i < cut;) {
      uint32_t end = i + 1;
      while (end < cut && path->text[end] != '/') ++end;
      if (end - i == 3 && path->text[i + 1] == '.' && path->text[i + 2] == '.') {
        while (to > 0 && path->text[--to] != '/') {
        }
      } else {
        memmove(path->text + to, path->text + i, end - i);
        to += end - i;
      }
      i = end;
    }
    n = to;
  }
  if (n == 1) n = 0;  // the root: its slash is that of the first component
  if (n + rest_length > kMaxPath) rest_length = 0;
  memcpy(path->text + n, rest, rest_length);
  path->length = n + rest_length;
}

bool absolute(int dirfd, const char* path, PathText* out) {
  out->length = 0;
  out->given = nullptr;
  if (path[0] != '/') {
    out->length = directory_text(dirfd, out->text);
    if (out->length == 0) return false;
    if (out->length == 1) out->length = 0;
  }
  bool dots = false;
  if (!append_components(out, path, &dots)) return false;
  if (dots) resolve_dots(out);
  if (out->length == 0) out->text[out->length++] = '/';
  return true;
}

}  // namespace

bool prepare_files(const DataDirs& dirs) {
  if (!g_known) {
    g_known = static_cast<KnownPath*>(address_space(kKnownPaths * sizeof(KnownPath)));
    g_descriptor_count = 0;
    for (uint32_t n = kDescriptors; n >= 1024 && !g_descriptors; n /= 16) {
      g_descriptors = static_cast<Descriptor*>(address_space(n * sizeof(Descriptor)));
      if (g_descriptors) g_descriptor_count = n;
    }
    for (size_t n = kTextSpace; n >= (1 << 20) && !g_text_space; n /= 8) {
      g_text_space = static_cast<char*>(address_space(n));
      if (g_text_space) g_text_size = n;
    }
  }
  if (!g_known || !g_descriptors) return false;
  // The old one is leaked: a call in another thread may still be using it.
  g_dirs = new DataDirs(dirs);
  refresh_cwd();
  return true;
}

void forget_files() {
  if (!g_known) return;
  for (uint32_t i = 0; i < kKnownPaths; ++i) g_known[i].key.store(0, std::memory_order_release);
  madvise(g_descriptors, g_descriptor_count * sizeof(Descriptor), MADV_DONTNEED);
  g_text_used.store(0);
  for (Mapping& m : g_mappings) m.at.store(nullptr);
}

File file_of_path(int dirfd, const char* path, PathText* text) {
  if (!path || !g_known) return {};
  if (path[0] == '/') {
    // Only normalised absolute paths are cached: a path found under its own text needs no normalising.
    size_t n = strlen(path);
    uint64_t key;
    KnownPath* k = known_path({path, n}, &key);
    File known;
    if (n <= kMaxPath && remembered(k, key, &known)) {
      text->given = path;
      text->length = uint32_t(n);
      return known;
    }
  }
  if (!absolute(dirfd, path, text)) return {};
  return traced_file(text->view());
}

File resolve_descriptor(int fd) {
  if (fd < 0 || !g_known) return {};
  int saved = errno;
  PathText text;
  text.length = name_of_descriptor(fd, text.text);
  File file;
  if (text.length) file.hash = traced_file(text.view()).hash;
  set_descriptor(fd, file, text.view(), 0);
  file.descriptor = descriptor(fd);
  errno = saved;
  return file;
}

void not_in_trace(std::string_view path) {
  uint64_t key;
  KnownPath* k = known_path(path, &key);
  if (k->key.load(std::memory_order_acquire) == key) k->announced.store(0, std::memory_order_relaxed);
}

bool first_in_trace(uint64_t hash, std::string_view path, uint32_t generation) {
  uint64_t key;
  KnownPath* k = known_path(path, &key);
  if (k->key.load(std::memory_order_acquire) != key || k->hash.load(std::memory_order_relaxed) != hash) return true;
  return first_in_trace(File{hash, nullptr, &k->announced, key}, generation);
}

void set_descriptor(int fd, File file, std::string_view text, uint32_t announced) {
  Descriptor* d = descriptor(fd);
  if (!d) return;
  if (uint32_t(fd) > g_highest.load(std::memory_order_relaxed))
    g_highest.store(uint32_t(fd), std::memory_order_relaxed);
  if (!file) {
    d->state.store(Descriptor::kNotTraced, std::memory_order_relaxed);
    return;
  }
  d->state.store(Descriptor::kUnknown, std::memory_order_relaxed);
  if (d->capacity < text.size()) {
    size_t room = kSmallest;
    while (room < text.size()) room *= 2;
    size_t at = g_text_used.fetch_add(room, std::memory_order_relaxed);
    bool fits = at + room <= g_text_size;
    d->text.store(fits ? g_text_space + at : nullptr, std::memory_order_relaxed);
    d->capacity = fits ? uint32_t(room) : 0;
  }
  uint32_t length = d->length.load(std::memory_order_relaxed);
  bool same = d->hash.load(std::memory_order_relaxed) == file.hash && length == text.size();
  if (!same) length = 0;
  if (char* to = d->text.load(std::memory_order_relaxed); !same && to && text.size() <= d->capacity) {
    memcpy(to, text.data(), text.size());
    length = uint32_t(text.size());
  }
  d->length.store(length, std::memory_order_relaxed);
  d->announced.store(announced, std::memory_order_relaxed);
  d->hash.store(file.hash, std::memory_order_relaxed);
  d->state.store(Descriptor::kTraced, std::memory_order_release);
}

void copy_descriptor(int from, int to) {
  Descriptor* d = descriptor(from);
  if (!d || from == to) return;
  switch (d->state.load(std::memory_order_acquire)) {
    case Descriptor::kUnknown: clear_descriptor(to); return;
    case Descriptor::kNotTraced: set_descriptor(to, {}, {}, 0); return;
  }
  uint32_t n = d->length.load(std::memory_order_relaxed);
  const char* text = d->text.load(std::memory_order_relaxed);
  File file{d->hash.load(std::memory_order_relaxed)};
  set_descriptor(to, file, {text, text ? n : 0}, d->announced.load(std::memory_order_relaxed));
}

void clear_descriptors(uint32_t first, uint32_t last) {
  uint32_t highest = g_highest.load(std::memory_order_relaxed);
  for (uint32_t i = first; i <= last && i <= highest; ++i) clear_descriptor(int(i));
}

void refresh_cwd() {
  char text[kMaxPath + 1];
  long n = syscall(SYS_getcwd, text, long(kMaxPath));
  uint32_t before = g_cwd.version.load(std::memory_order_relaxed);
  if (before & 1) return;  // another thread is changing it: readers ask the kernel until it is done
  if (!g_cwd.version.compare_exchange_strong(before, before + 1, std::memory_order_acq_rel)) return;
  bool good = n > 1 && text[0] == '/';
  g_cwd.length = good ? uint32_t(n - 1) : kMaxPath + 1;
  if (good) memcpy(g_cwd.text, text, size_t(n));
  g_cwd.version.store(before + 2, std::memory_order_release);
}

void note_mapping(const void* at, uint64_t hash) {
  auto start = uint32_t(reinterpret_cast<uintptr_t>(at) >> 12);
  for (uint32_t i = 0; i < kProbes; ++i) {
    Mapping& m = g_mappings[(start + i) % kMappings];
    const void* empty = nullptr;
    if (m.at.load(std::memory_order_relaxed) == at || m.at.compare_exchange_strong(empty, at)) {
      m.hash.store(hash, std::memory_order_relaxed);
      return;
    }
  }
}

uint64_t mapping_at(const void* at, bool forget) {
  auto start = uint32_t(reinterpret_cast<uintptr_t>(at) >> 12);
  for (uint32_t i = 0; i < kProbes; ++i) {
    Mapping& m = g_mappings[(start + i) % kMappings];
    if (m.at.load(std::memory_order_relaxed) != at) continue;
    uint64_t hash = m.hash.load(std::memory_order_relaxed);
    if (forget) m.at.store(nullptr, std::memory_order_relaxed);
    return hash;
  }
  return 0;
}

}  // namespace dft
