// Calls on streams. What a stream reads or writes underneath happens inside the C library and is not recorded
// a second time.
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>

#include <cstring>

#include "intercept/hook_table.hpp"
#include "intercept/io_record.hpp"

namespace dft {
namespace {

int descriptor_of(FILE* stream) {
  // Streams without a descriptor (fmemopen) set errno; the program must not see that.
  int saved = errno;
  int fd = stream ? fileno_unlocked(stream) : -1;
  errno = saved;
  return fd;
}

File file_of(FILE* stream) {
  int fd = descriptor_of(stream);
  return fd < 0 ? File{} : dft::file_of(fd);
}

// `judge` decides from the result what is recorded: {value, has value, failed}.
struct Judged {
  int64_t ret;
  bool has_ret;
  bool failed;
};

template <typename R, typename... P, typename Judge, typename... A>
inline R on_stream(Call call, FILE* stream, const Values& values, Judge judge, R (*function)(P...), A... args) {
  if (!io_active()) return function(args...);
  File file = file_of(stream);
  if (!file) return function(args...);
  uint64_t start = call_starts();
  R ret = function(args...);
  Finished done;
  Judged j = judge(ret);
  record_file(call, file, start, done, j.has_ret, j.ret, j.failed, values);
  return ret;
}

template <typename R>
Judged as_is(R ret) {
  return {int64_t(ret), true, ret == R(-1)};
}

int flags_of(const char* mode) {
  if (!mode) return 0;
  int flags = strchr(mode, '+') ? O_RDWR : mode[0] == 'r' ? O_RDONLY : O_WRONLY;
  if (mode[0] == 'w') flags |= O_CREAT | O_TRUNC;
  if (mode[0] == 'a') flags |= O_CREAT | O_APPEND;
  if (strchr(mode, 'x')) flags |= O_EXCL;
  if (strchr(mode, 'e')) flags |= O_CLOEXEC;
  return flags;
}

void opened(Call call, const char* path, uint64_t start, FILE* stream, const Values& values) {
  Finished done;
  int fd = descriptor_of(stream);
  if (!stream && done.error() == EFAULT) return;
  PathText text;
  File file = file_of_path(AT_FDCWD, path, &text);
  if (file) record_path(call, file, text, start, done, true, fd, stream == nullptr, values);
  if (fd >= 0) set_descriptor(fd, file, text.view(), file ? g_generation.load(std::memory_order_relaxed) : 0);
}

template <int S>
FILE* hook_fopen(const char* path, const char* mode) {
  auto* function = real<S, FILE*(const char*, const char*)>();
  if (!io_active()) return function(path, mode);
  uint64_t start = call_starts();
  FILE* stream = function(path, mode);
  opened(Call::fopen_, path, start, stream, Values(flags_of(mode)));
  return stream;
}

template <int S>
FILE* hook_fdopen(int fd, const char* mode) {
  auto* function = real<S, FILE*(int, const char*)>();
  if (!io_active()) return function(fd, mode);
  File file = dft::file_of(fd);
  if (!file) return function(fd, mode);
  uint64_t start = call_starts();
  FILE* stream = function(fd, mode);
  Finished done;
  record_file(Call::fdopen_, file, start, done, true, stream ? fd : -1, stream == nullptr, Values());
  return stream;
}

template <int S>
FILE* hook_freopen(const char* path, const char* mode, FILE* stream) {
  auto* function = real<S, FILE*(const char*, const char*, FILE*)>();
  if (!io_active()) return function(path, mode, stream);
  int before = descriptor_of(stream);
  if (before >= 0 && path) clear_descriptor(before);
  uint64_t start = call_starts();
  FILE* ret = function(path, mode, stream);
  if (path) opened(Call::freopen_, path, start, ret, Values(flags_of(mode)));
  return ret;
}

template <int S>
int hook_fclose(FILE* stream) {
  auto* function = real<S, int(FILE*)>();
  if (!io_active() || !stream) return function(stream);
  int fd = descriptor_of(stream);
  File file = fd < 0 ? File{} : dft::file_of(fd);
  if (file.descriptor && file.descriptor->announced.load() != g_generation.load(std::memory_order_relaxed))
    if (ThreadState* t = g_io_on[int(Call::fclose_)] ? io_thread() : nullptr) announce_descriptor(t, file.descriptor);
  clear_descriptor(fd);
  file.descriptor = nullptr;
  if (!file) return function(stream);
  uint64_t start = call_starts();
  int ret = function(stream);
  Finished done;
  record_file(Call::fclose_, file, start, done, true, ret, ret != 0, Values());
  return ret;
}

template <int S>
size_t hook_fread(void* buffer, size_t size, size_t count, FILE* stream) {
  auto judge = [&](size_t ret) { return Judged{int64_t(ret), true, ret < count && ferror_unlocked(stream) != 0}; };
  return on_stream(Call::fread_, stream, Values(size, count), judge, real<S, size_t(void*, size_t, size_t, FILE*)>(),
                   buffer, size, count, stream);
}

template <int S>
size_t hook_fread_chk(void* buffer, size_t room, size_t size, size_t count, FILE* stream) {
  auto judge = [&](size_t ret) { return Judged{int64_t(ret), true, ret < count && ferror_unlocked(stream) != 0}; };
  return on_stream(Call::fread_, stream, Values(size, count), judge,
                   real<S, size_t(void*, size_t, size_t, size_t, FILE*)>(), buffer, room, size, count, stream);
}

template <int S>
size_t hook_fwrite(const void* buffer, size_t size, size_t count, FILE* stream) {
  auto judge = [&](size_t ret) { return Judged{int64_t(ret), true, ret < count && size != 0}; };
  return on_stream(Call::fwrite_, stream, Values(size, count), judge,
                   real<S, size_t(const void*, size_t, size_t, FILE*)>(), buffer, size, count, stream);
}

Judged length_of_line(const char* line, FILE* stream) {
  if (line) return {int64_t(strlen(line)), true, false};
  bool failed = ferror_unlocked(stream) != 0;
  return {failed ? -1 : 0, true, failed};
}

template <int S>
char* hook_fgets(char* buffer, int size, FILE* stream) {
  return on_stream(
      Call::fgets_, stream, Values(size), [&](char* ret) { return length_of_line(ret, stream); },
      real<S, char*(char*, int, FILE*)>(), buffer, size, stream);
}

template <int S>
char* hook_fgets_chk(char* buffer, size_t room, int size, FILE* stream) {
  return on_stream(
      Call::fgets_, stream, Values(size), [&](char* ret) { return length_of_line(ret, stream); },
      real<S, char*(char*, size_t, int, FILE*)>(), buffer, room, size, stream);
}

// The result of these only says whether they failed: it is left out if they did not.
Judged only_failure(int ret) { return {ret, ret == EOF, ret == EOF}; }

template <int S>
int hook_fputs(const char* text, FILE* stream) {
  auto* function = real<S, int(const char*, FILE*)>();
  if (!io_active()) return function(text, stream);
  File file = file_of(stream);
  if (!file) return function(text, stream);
  uint64_t start = call_starts();
  int ret = function(text, stream);
  Finished done;
  record_file(Call::fputs_, file, start, done, ret == EOF, ret, ret == EOF, Values(strlen(text)));
  return ret;
}

template <int S>
int hook_fgetc(FILE* stream) {
  auto judge = [&](int ret) {
    bool failed = ret == EOF && ferror_unlocked(stream);
    return Judged{failed ? -1 : 0, ret == EOF, failed};
  };
  return on_stream(Call::fgetc_, stream, Values(1), judge, real<S, int(FILE*)>(), stream);
}

template <int S>
int hook_fputc(int c, FILE* stream) {
  return on_stream(Call::fputc_, stream, Values(1), only_failure, real<S, int(int, FILE*)>(), c, stream);
}

template <int S>
ssize_t hook_getline(char** line, size_t* room, FILE* stream) {
  auto judge = [&](ssize_t ret) {
    bool failed = ret == -1 && ferror_unlocked(stream);
    return Judged{ret == -1 && !failed ? 0 : ret, true, failed};
  };
  return on_stream(Call::getline_, stream, Values(), judge, real<S, ssize_t(char**, size_t*, FILE*)>(), line, room,
                   stream);
}

template <int S>
ssize_t hook_getdelim(char** line, size_t* room, int delimiter, FILE* stream) {
  auto judge = [&](ssize_t ret) {
    bool failed = ret == -1 && ferror_unlocked(stream);
    return Judged{ret == -1 && !failed ? 0 : ret, true, failed};
  };
  // Headers of the C library turn getline into this.
  return on_stream(delimiter == '\n' ? Call::getline_ : Call::getdelim_, stream, Values(), judge,
                   real<S, ssize_t(char**, size_t*, int, FILE*)>(), line, room, delimiter, stream);
}

template <int S>
int hook_fseek(FILE* stream, off_t offset, int whence) {
  return on_stream(Call::fseek_, stream, Values(offset, whence), as_is<int>, real<S, int(FILE*, off_t, int)>(), stream,
                   offset, whence);
}

template <int S>
off_t hook_ftell(FILE* stream) {
  return on_stream(Call::ftell_, stream, Values(), as_is<off_t>, real<S, off_t(FILE*)>(), stream);
}

template <int S>
int hook_fflush(FILE* stream) {
  if (!stream) return real<S, int(FILE*)>()(stream);
  return on_stream(Call::fflush_, stream, Values(), as_is<int>, real<S, int(FILE*)>(), stream);
}

template <int S>
void hook_rewind(FILE* stream) {
  auto* function = real<S, void(FILE*)>();
  if (!io_active()) return function(stream);
  File file = file_of(stream);
  if (!file) return function(stream);
  uint64_t start = call_starts();
  function(stream);
  Finished done;
  record_file(Call::rewind_, file, start, done, false, 0, false, Values());
}

Judged printed(int ret) { return {ret, true, ret < 0}; }

template <int S>
int hook_vfprintf(FILE* stream, const char* format, va_list list) {
  auto* function = real<S, int(FILE*, const char*, va_list)>();
  if (!io_active()) return function(stream, format, list);
  File file = file_of(stream);
  if (!file) return function(stream, format, list);
  uint64_t start = call_starts();
  int ret = function(stream, format, list);
  Finished done;
  Judged j = printed(ret);
  record_file(Call::fprintf_, file, start, done, j.has_ret, j.ret, j.failed, Values());
  return ret;
}

template <int S>
int hook_fprintf(FILE* stream, const char* format, ...) {
  va_list list;
  va_start(list, format);
  int ret = hook_vfprintf<S_vfprintf>(stream, format, list);
  va_end(list);
  return ret;
}

template <int S>
int hook_vfprintf_chk(FILE* stream, int flag, const char* format, va_list list) {
  auto* function = real<S, int(FILE*, int, const char*, va_list)>();
  if (!io_active()) return function(stream, flag, format, list);
  File file = file_of(stream);
  if (!file) return function(stream, flag, format, list);
  uint64_t start = call_starts();
  int ret = function(stream, flag, format, list);
  Finished done;
  Judged j = printed(ret);
  record_file(Call::fprintf_, file, start, done, j.has_ret, j.ret, j.failed, Values());
  return ret;
}

template <int S>
int hook_fprintf_chk(FILE* stream, int flag, const char* format, ...) {
  va_list list;
  va_start(list, format);
  int ret = hook_vfprintf_chk<S___vfprintf_chk>(stream, flag, format, list);
  va_end(list);
  return ret;
}

}  // namespace

#define IO_HOOK_STDIO ADD_HOOK
void add_stdio_hooks(std::vector<Hook>* out) {
#include "format/io_hooks.def"
}

}  // namespace dft
