#include "module/process_stacks.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "format/arguments.hpp"
#include "module/own_code.hpp"
#include "module/stack_reader.hpp"

namespace dft::py {
namespace {

constexpr size_t kDeepest = 128;
constexpr std::string_view kChildBegins = "BaseProcess._bootstrap";  // of multiprocessing

// Calls that wait for a file: by a descriptor, by a path, or by a path that a directory's descriptor comes before.
enum class Names : uint8_t { kDescriptor, kPath, kPathAt };
struct FileCall {
  long number;
  const char* name;
  Names by;
};
constexpr FileCall kFileCalls[] = {
    {SYS_read, "read", Names::kDescriptor},
    {SYS_pread64, "read", Names::kDescriptor},
    {SYS_readv, "read", Names::kDescriptor},
    {SYS_preadv, "read", Names::kDescriptor},
    {SYS_write, "write", Names::kDescriptor},
    {SYS_pwrite64, "write", Names::kDescriptor},
    {SYS_writev, "write", Names::kDescriptor},
    {SYS_pwritev, "write", Names::kDescriptor},
    {SYS_fsync, "fsync", Names::kDescriptor},
    {SYS_fdatasync, "fsync", Names::kDescriptor},
    {SYS_ftruncate, "truncate", Names::kDescriptor},
    {SYS_fallocate, "allocate", Names::kDescriptor},
    {SYS_flock, "lock", Names::kDescriptor},
    {SYS_fcntl, "lock", Names::kDescriptor},
    {SYS_fstat, "stat", Names::kDescriptor},
    {SYS_getdents64, "list", Names::kDescriptor},
    {SYS_close, "close", Names::kDescriptor},
    {SYS_openat, "open", Names::kPathAt},
    {SYS_newfstatat, "stat", Names::kPathAt},
    {SYS_statx, "stat", Names::kPathAt},
    {SYS_unlinkat, "unlink", Names::kPathAt},
#ifdef SYS_open
    {SYS_open, "open", Names::kPath},
    {SYS_stat, "stat", Names::kPath},
#endif
};
constexpr std::pair<long, const char*> kOtherCalls[] = {
    {SYS_futex, "futex"},      {SYS_clock_nanosleep, "sleep"}, {SYS_nanosleep, "sleep"},
    {SYS_recvfrom, "receive"}, {SYS_recvmsg, "receive"},       {SYS_ppoll, "poll"},
    {SYS_wait4, "wait"},       {SYS_waitid, "wait"},           {SYS_connect, "connect"},
    {SYS_epoll_pwait, "poll"},
#ifdef SYS_poll
    {SYS_poll, "poll"},        {SYS_epoll_wait, "poll"},       {SYS_select, "poll"},
#endif
};

std::string small_file(const std::string& path) {
  char text[4096];
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return {};
  ssize_t n = read(fd, text, sizeof text);
  close(fd);
  return n > 0 ? std::string(text, size_t(n)) : std::string();
}

std::string line_in(const std::string& path) {
  std::string text = small_file(path);
  return text.substr(0, text.find('\n'));
}

// The fields of a stat file after the name, which may hold anything.
const char* after_name(const std::string& stat) {
  size_t at = stat.rfind(')');
  return at == stat.npos || at + 2 >= stat.size() ? nullptr : stat.c_str() + at + 2;
}

std::string text_at(const Memory& memory, uintptr_t at) {
  std::string out;
  char piece[64];
  while (out.size() < 4096) {
    // Not over the end of a page: what follows may not be there.
    size_t n = std::min(sizeof piece, 4096 - (at + out.size()) % 4096);
    if (!memory.copy(piece, reinterpret_cast<const void*>(at + out.size()), n)) return out;
    size_t length = strnlen(piece, n);
    out.append(piece, length);
    if (length < n) break;
  }
  return out;
}

// What a link of /proc stands for, if that has a place in the file system.
std::string linked(const std::string& link) {
  char path[4096];
  ssize_t n = readlink(link.c_str(), path, sizeof path);
  return n > 0 && path[0] == '/' ? std::string(path, size_t(n)) : std::string();
}

void see_call(int pid, const Memory& memory, SeenThread& thread) {
  std::string task = "/proc/" + std::to_string(pid) + "/task/" + std::to_string(thread.tid);
  std::string text = small_file(task + "/syscall");
  if (text.empty() || text[0] < '0' || text[0] > '9') return;
  char* at = nullptr;
  long number = strtol(text.c_str(), &at, 10);
  uintptr_t first = strtoul(at, &at, 16), second = strtoul(at, &at, 16);
  std::string process = "/proc/" + std::to_string(pid), descriptor = "/fd/" + std::to_string(int(first));
  for (auto& [each, name] : kOtherCalls)
    if (each == number) thread.call = name;
  for (const FileCall& each : kFileCalls) {
    if (each.number != number) continue;
    thread.call = each.name;
    if (each.by != Names::kDescriptor) {
      thread.path = text_at(memory, each.by == Names::kPath ? first : second);
      bool from_here = each.by == Names::kPath || int(first) == AT_FDCWD;
      if (!thread.path.empty() && thread.path[0] != '/')
        thread.path = linked(process + (from_here ? "/cwd" : descriptor)) + "/" + thread.path;
      continue;
    }
    thread.path = linked(process + descriptor);
  }
}

std::string_view base_name(std::string_view path) {
  size_t slash = path.rfind('/');
  return slash == path.npos ? path : path.substr(slash + 1);
}

bool waits_for_a_file(const SeenThread& t) { return !t.path.empty() && !t.path.starts_with("/dev/"); }

}  // namespace

SeenProcess look_at_process(int pid) {
  SeenProcess out;
  out.pid = pid;
  std::string process = "/proc/" + std::to_string(pid);
  out.name = line_in(process + "/comm");
  std::string stat = small_file(process + "/stat");
  if (const char* fields = after_name(stat)) out.state = *fields;
  auto memory = Memory::of(pid);
  if (!memory) return out;
  StackReader reader(*memory);
  for (const PythonThread& each : python_threads(*memory)) {
    SeenThread thread;
    thread.tid = each.tid;
    std::string task = process + "/task/" + std::to_string(each.tid);
    std::string task_stat = small_file(task + "/stat");
    const char* fields = after_name(task_stat);
    if (!fields) continue;  // not a thread of this process: a fork's copy of the parent's
    thread.state = *fields;
    thread.name = line_in(task + "/comm");
    see_call(pid, *memory, thread);
    for (const StackFrame& f : reader.read(each.state, kDeepest)) {
      thread.frames.push_back({std::string(f.function), std::string(f.file), f.line});
      if (f.function == kChildBegins) break;  // below it, in a fork, are copies of the parent's
    }
    out.threads.push_back(std::move(thread));
  }
  std::stable_sort(out.threads.begin(), out.threads.end(),
                   [&](const auto& a, const auto& b) { return (a.tid == pid) > (b.tid == pid); });
  return out;
}

std::vector<int> children_of(int pid) {
  std::vector<int> out;
  DIR* proc = opendir("/proc");
  if (!proc) return out;
  while (const dirent* entry = readdir(proc)) {
    int each = atoi(entry->d_name);
    if (each <= 0) continue;
    std::string stat = small_file("/proc/" + std::string(entry->d_name) + "/stat");
    const char* fields = after_name(stat);
    if (fields && strlen(fields) > 2 && atoi(fields + 2) == pid) out.push_back(each);
  }
  closedir(proc);
  std::sort(out.begin(), out.end());
  return out;
}

std::string place_of(const SeenFrame& frame) {
  std::string out(base_name(frame.file));
  append_int(out += ':', frame.line);
  return out.append(" ").append(frame.function);
}

std::string users_place(const SeenThread& thread) {
  for (const SeenFrame& f : thread.frames)
    if (is_user_code(f.file)) return place_of(f);
  return {};
}

std::string place_in(const SeenProcess& process) {
  for (const SeenThread& thread : process.threads)
    if (std::string place = users_place(thread); !place.empty()) return place;
  for (const SeenThread& thread : process.threads)
    if (!thread.frames.empty()) return place_of(thread.frames[0]);
  return {};
}

void append_threads(std::string& out, const SeenProcess& process) {
  out += '[';
  for (const SeenThread& t : process.threads) {
    if (out.back() == '}') out += ',';
    out.append("{\"state\":\"").append(1, t.state).append("\"");
    append_arg(out, "tid", t.tid);
    append_arg(out, "name", t.name);
    append_arg(out, "call", t.call);
    append_arg(out, "path", t.path);
    append_key(out, "frames");
    out += '[';
    for (const SeenFrame& f : t.frames) {
      if (out.back() == '"') out += ',';
      std::string text = f.file;
      append_int(text += ':', f.line);
      append_json_string(out, text.append(" ").append(f.function));
    }
    out += "]}";
  }
  out += ']';
}

void append_process(std::string& out, const SeenProcess& process) {
  out.append("{\"state\":\"").append(1, process.state).append("\"");
  append_arg(out, "pid", process.pid);
  append_arg(out, "name", process.name);
  append_arg(out, "where", place_in(process));
  append_key(out, "open_file");
  auto waiting = std::find_if(process.threads.begin(), process.threads.end(), waits_for_a_file);
  if (waiting == process.threads.end()) {
    out += "null";
  } else {
    append_json_string(out, waiting->path);
  }
  append_key(out, "threads");
  append_threads(out, process);
  out += '}';
}

PyObject* stacks_of(PyObject*, PyObject* pid) {
  long number = PyLong_AsLong(pid);
  if (number == -1 && PyErr_Occurred()) return nullptr;
  std::string out;
  if (!possible([&] { append_process(out, look_at_process(int(number))); })) return nullptr;
  return PyUnicode_DecodeUTF8(out.data(), Py_ssize_t(out.size()), "replace");
}

}  // namespace dft::py
