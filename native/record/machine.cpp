#include "record/machine.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <string_view>

#include "format/arguments.hpp"

namespace dft {
namespace {

constexpr uint64_t kUnlimited = uint64_t(1) << 60;  // cgroup v1 writes a number near 2^63
constexpr uint64_t kSector = 512;
constexpr size_t kMaxThreads = 512;  // read one by one

// The whole of a small file, empty if it cannot be read.
std::string read_text(const std::string& path, size_t most = 64 << 10) {
  std::string text;
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  char piece[8192];
  constexpr ssize_t kWhole = 2048;  // less than the kernel gives of a longer one: this is all
  ssize_t n;
  do {
    n = read(fd, piece, sizeof piece);
    if (n > 0) text.append(piece, size_t(n));
  } while (n >= kWhole && text.size() < most);
  close(fd);
  return text;
}

bool next_line(std::string_view* rest, std::string_view* line) {
  if (rest->empty()) return false;
  size_t end = std::min(rest->find('\n'), rest->size());
  *line = rest->substr(0, end);
  rest->remove_prefix(std::min(end + 1, rest->size()));
  return true;
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> out;
  for (size_t at = 0; (at = line.find_first_not_of(" \t", at)) != line.npos;) {
    size_t end = std::min(line.find_first_of(" \t", at), line.size());
    out.push_back(line.substr(at, end - at));
    at = end;
  }
  return out;
}

uint64_t number(std::string_view text) {
  uint64_t n = 0;
  for (char c : text) {
    if (c < '0' || c > '9') break;
    n = n * 10 + uint64_t(c - '0');
  }
  return n;
}

// The number after `key` at the beginning of a line.
std::optional<uint64_t> value_of(std::string_view text, std::string_view key) {
  std::string_view line;
  while (next_line(&text, &line)) {
    if (!line.starts_with(key)) continue;
    size_t at = line.find_first_not_of(" \t:", key.size());
    if (at == line.npos || at == key.size()) continue;
    return number(line.substr(at));
  }
  return {};
}

void append(std::string* args, std::string_view key, uint64_t value) { append_arg(*args, key, int64_t(value)); }

void append_if(std::string* args, std::string_view key, std::optional<uint64_t> value, uint64_t scale = 1) {
  if (value) append(args, key, *value * scale);
}

uint64_t micros(const timeval& t) { return uint64_t(t.tv_sec) * 1000000 + uint64_t(t.tv_usec); }

struct Scheduled {
  uint64_t ran_ns, waited_ns;
};

std::optional<Scheduled> read_schedule(const std::string& path) {
  std::string text = read_text(path);
  auto words = words_of(text);
  if (words.size() < 2) return {};
  return Scheduled{number(words[0]), number(words[1])};
}

uint64_t count_threads(const std::string& stat) {
  size_t name_end = stat.rfind(')');
  if (name_end == stat.npos) return 0;
  auto words = words_of(std::string_view(stat).substr(name_end + 1));
  return words.size() > 17 ? number(words[17]) : 0;
}

// us since this process began, to the clock tick; 0 if that is unknown.
uint64_t age_us() {
  std::string stat = read_text("/proc/self/stat");
  size_t name_end = stat.rfind(')');
  if (name_end == stat.npos) return 0;
  auto words = words_of(std::string_view(stat).substr(name_end + 1));
  if (words.size() <= 19) return 0;
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  uint64_t us = uint64_t(now.tv_sec) * 1000000 + uint64_t(now.tv_nsec) / 1000;
  uint64_t began = number(words[19]) * 1000000 / uint64_t(sysconf(_SC_CLK_TCK));
  return us > began ? us - began : 0;
}

void append_io(std::string* args, const std::string& io, bool calls) {
  if (calls) append_if(args, "rchar", value_of(io, "rchar"));
  if (calls) append_if(args, "wchar", value_of(io, "wchar"));
  append_if(args, "read_bytes", value_of(io, "read_bytes"));
  append_if(args, "write_bytes", value_of(io, "write_bytes"));
}

// Whole disks: partitions, loop devices and what is built from other disks would count the same bytes twice.
bool is_disk(std::string_view name) {
  auto numbered = [&](std::string_view prefix, char part) {
    return name.starts_with(prefix) && name.find(part, prefix.size()) == name.npos;
  };
  bool lettered = name.size() >= 3 && (name.starts_with("sd") || name.starts_with("vd") || name.starts_with("hd") ||
                                       name.starts_with("xvd"));
  if (lettered) return name.find_first_of("0123456789") == name.npos;
  return numbered("nvme", 'p') || numbered("mmcblk", 'p');
}

void sample_disks(const std::string& text, std::vector<Counter>* out) {
  uint64_t read = 0, written = 0, busy_ms = 0;
  bool any = false;
  std::string_view rest = text, line;
  while (next_line(&rest, &line)) {
    auto words = words_of(line);
    if (words.size() < 13 || !is_disk(words[2])) continue;
    any = true;
    read += number(words[5]) * kSector;
    written += number(words[9]) * kSector;
    busy_ms = std::max(busy_ms, number(words[12]));  // of the busiest
  }
  if (!any) return;
  std::string args;
  append(&args, "read_bytes", read);
  append(&args, "written_bytes", written);
  append(&args, "busy_us", busy_ms * 1000);
  out->push_back({"host.disk", args});
}

void sample_network(const std::string& text, std::vector<Counter>* out) {
  uint64_t received = 0, sent = 0;
  bool any = false;
  std::string_view rest = text, line;
  while (next_line(&rest, &line)) {
    size_t colon = line.find(':');
    if (colon == line.npos) continue;
    auto name = words_of(line.substr(0, colon));
    auto words = words_of(line.substr(colon + 1));
    if (name.empty() || name[0] == "lo" || words.size() < 9) continue;
    any = true;
    received += number(words[0]);
    sent += number(words[8]);
  }
  if (!any) return;
  std::string args;
  append(&args, "received_bytes", received);
  append(&args, "sent_bytes", sent);
  out->push_back({"host.network", args});
}

void append_pressure(std::string* args, const std::string& text, const std::string& what) {
  std::string_view rest = text, line;
  while (next_line(&rest, &line)) {
    size_t space = line.find(' '), total = line.find("total=");
    if (space == line.npos || total == line.npos) continue;
    append(args, what + "_" + std::string(line.substr(0, space)) + "_us", number(line.substr(total + 6)));
  }
}

}  // namespace

uint64_t Machine::waited_by_all_threads() {
  std::string tasks = root_ + "/proc/self/task";
  DIR* dir = opendir(tasks.c_str());
  if (!dir) return 0;
  std::map<int64_t, uint64_t> now;
  while (dirent* entry = readdir(dir)) {
    if (entry->d_name[0] == '.' || now.size() >= kMaxThreads) continue;
    auto scheduled = read_schedule(tasks + "/" + entry->d_name + "/schedstat");
    if (!scheduled) continue;
    int64_t tid = atoll(entry->d_name);
    now[tid] = scheduled->waited_ns;
    auto before = waited_by_thread_.find(tid);
    bool same = before != waited_by_thread_.end() && before->second <= scheduled->waited_ns;
    waited_ns_ += scheduled->waited_ns - (same ? before->second : 0);
  }
  closedir(dir);
  waited_by_thread_ = std::move(now);
  return waited_ns_;
}

void Machine::sample_process(std::vector<Counter>* out) {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  std::string cpu, memory, io;
  append(&cpu, "user_us", micros(used.ru_utime));
  append(&cpu, "system_us", micros(used.ru_stime));
  if (auto main = read_schedule(root_ + "/proc/self/schedstat")) {
    append(&cpu, "ran_us", main->ran_ns / 1000);
    append(&cpu, "waited_us", main->waited_ns / 1000);
    append(&cpu, "threads_waited_us", waited_by_all_threads() / 1000);
  } else {
    note_missing(Source::kSchedule);
  }
  append(&cpu, "switched_out", uint64_t(used.ru_nivcsw));
  if (uint64_t threads = count_threads(read_text(root_ + "/proc/self/stat"))) append(&cpu, "threads", threads);
  std::string statm = read_text(root_ + "/proc/self/statm");
  auto pages = words_of(statm);
  uint64_t page = uint64_t(sysconf(_SC_PAGESIZE));
  if (pages.size() > 2) {
    append(&memory, "rss", number(pages[1]) * page);
    append(&memory, "shared", number(pages[2]) * page);
  } else {
    note_missing(Source::kProc);
  }
  append(&memory, "major_faults", uint64_t(used.ru_majflt));
  append_io(&io, read_text(root_ + "/proc/self/io"), true);
  if (io.empty()) note_missing(Source::kIo);
  out->push_back({"cpu", cpu});
  out->push_back({"memory", memory});
  if (!io.empty()) out->push_back({"io", io});
}

void Machine::sample_host(std::vector<Counter>* out) {
  std::string stat = read_text(root_ + "/proc/stat", 4 << 20);
  std::string_view first, rest = stat;
  if (next_line(&rest, &first) && first.starts_with("cpu ")) {
    auto words = words_of(first);
    std::string args;
    uint64_t tick_us = 1000000 / uint64_t(sysconf(_SC_CLK_TCK));
    uint64_t field[9] = {};
    for (size_t i = 1; i < words.size() && i < std::size(field); ++i) field[i] = number(words[i]) * tick_us;
    append(&args, "user_us", field[1] + field[2]);
    append(&args, "system_us", field[3] + field[6] + field[7]);
    append(&args, "idle_us", field[4]);
    append(&args, "iowait_us", field[5]);
    if (field[8]) append(&args, "stolen_us", field[8]);
    append(&args, "cpus", uint64_t(sysconf(_SC_NPROCESSORS_ONLN)));
    append_if(&args, "runnable", value_of(stat, "procs_running"));
    out->push_back({"host.cpu", args});
  } else {
    note_missing(Source::kProc);
  }
  std::string meminfo = read_text(root_ + "/proc/meminfo"), vmstat = read_text(root_ + "/proc/vmstat");
  if (!meminfo.empty()) {
    std::string args;
    append_if(&args, "total", value_of(meminfo, "MemTotal"), 1024);
    append_if(&args, "available", value_of(meminfo, "MemAvailable"), 1024);
    append_if(&args, "page_cache", value_of(meminfo, "Cached"), 1024);
    append_if(&args, "dirty", value_of(meminfo, "Dirty"), 1024);
    uint64_t swap = value_of(meminfo, "SwapTotal").value_or(0);
    append(&args, "swap_total", swap * 1024);
    if (swap) append(&args, "swap_used", (swap - std::min(swap, value_of(meminfo, "SwapFree").value_or(0))) * 1024);
    uint64_t page = uint64_t(sysconf(_SC_PAGESIZE));
    append_if(&args, "swapped_in", value_of(vmstat, "pswpin"), page);
    append_if(&args, "swapped_out", value_of(vmstat, "pswpout"), page);
    auto refault = value_of(vmstat, "workingset_refault_file");
    append_if(&args, "cache_refaults", refault ? refault : value_of(vmstat, "workingset_refault"), page);
    out->push_back({"host.memory", args});
  }
  sample_disks(read_text(root_ + "/proc/diskstats"), out);
  sample_network(read_text(root_ + "/proc/net/dev"), out);
  std::string pressure;
  for (const char* what : {"cpu", "memory", "io"})
    append_pressure(&pressure, read_text(root_ + "/proc/pressure/" + what), what);
  if (pressure.empty())
    note_missing(Source::kPressure);
  else
    out->push_back({"host.pressure", pressure});
}

namespace {

std::optional<uint64_t> memory_limit(const std::string& directory, bool unified) {
  std::string text = read_text(directory + (unified ? "/memory.max" : "/memory.limit_in_bytes"));
  if (text.empty() || text.starts_with("max")) return {};
  uint64_t limit = number(text);
  return limit < kUnlimited ? std::optional(limit) : std::nullopt;
}

// In thousandths of a CPU.
std::optional<uint64_t> cpu_limit(const std::string& directory, bool unified) {
  std::string quota = read_text(directory + (unified ? "/cpu.max" : "/cpu.cfs_quota_us"));
  std::string period = unified ? quota : read_text(directory + "/cpu.cfs_period_us");
  auto words = words_of(period);
  uint64_t us = words.empty() ? 0 : number(words[unified && words.size() > 1 ? 1 : 0]);
  if (quota.empty() || quota.starts_with("max") || quota.starts_with("-") || us == 0) return {};
  return number(quota) * 1000 / us;
}

struct Mount {
  std::string root, at;
};

}  // namespace

Cgroup::Group Cgroup::tightest(const std::string& mount, const std::string& path, bool unified, bool memory) const {
  Group found{mount + path, unified};
  std::optional<uint64_t> lowest;
  for (std::string at = path;;) {
    std::string directory = mount + at;
    auto limit = memory ? memory_limit(directory, unified) : cpu_limit(directory, unified);
    if (limit && (!lowest || *limit < *lowest)) {
      lowest = limit;
      found.directory = directory;
    }
    size_t slash = at.rfind('/');
    if (at.empty() || slash == at.npos) break;
    at.resize(slash);
  }
  return found;
}

bool Cgroup::find() {
  std::string mounts = read_text(root_ + "/proc/self/mountinfo", 1 << 20);
  std::string groups = read_text(root_ + "/proc/self/cgroup");
  identity_ = groups;
  std::map<std::string, Mount> mounted;  // by controller; "" is the unified hierarchy
  std::string_view rest = mounts, line;
  while (next_line(&rest, &line)) {
    auto words = words_of(line);
    auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || words.end() - dash < 4) continue;
    std::string root(words[3] == "/" ? "" : words[3]), at(words[4]);
    if (dash[1] == "cgroup2") {
      mounted.try_emplace("", Mount{root, at});
    } else if (dash[1] == "cgroup") {
      std::string options = "," + std::string(dash[3]) + ",";
      for (const char* controller : {"cpu", "memory"})
        if (options.find("," + std::string(controller) + ",") != options.npos)
          mounted.try_emplace(controller, Mount{root, at});
    }
  }
  std::map<std::string, std::string> path_of;
  rest = groups;
  while (next_line(&rest, &line)) {
    size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    std::string path(line.substr(second + 1));
    if (path == "/") path.clear();
    std::string controllers = "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
    if (controllers == ",,") path_of[""] = path;
    for (const char* controller : {"cpu", "memory"})
      if (controllers.find("," + std::string(controller) + ",") != controllers.npos) path_of[controller] = path;
  }
  for (bool memory : {false, true}) {
    const char* controller = memory ? "memory" : "cpu";
    bool unified = !mounted.contains(controller) || !path_of.contains(controller);
    std::string key = unified ? "" : controller;
    if (!mounted.contains(key) || !path_of.contains(key)) continue;
    const Mount& mount = mounted[key];
    std::string path = path_of[key];
    // A container sees its own part of the hierarchy, under the path it has on the host.
    if (!mount.root.empty() && path.starts_with(mount.root)) path.erase(0, mount.root.size());
    std::string at = root_ + mount.at;
    if (access((at + path).c_str(), F_OK) != 0) path.clear();
    (memory ? memory_ : cpu_) = tightest(at, path, unified, memory);
  }
  return !cpu_.directory.empty() || !memory_.directory.empty();
}

bool Cgroup::sample(std::vector<Counter>* out) const {
  std::string args;
  if (!cpu_.directory.empty()) {
    append_if(&args, "cpu_limit_milli", cpu_limit(cpu_.directory, cpu_.unified));
    std::string stat = read_text(cpu_.directory + "/cpu.stat");
    append_if(&args, "periods", value_of(stat, "nr_periods"));
    append_if(&args, "throttled_periods", value_of(stat, "nr_throttled"));
    if (cpu_.unified) {
      append_if(&args, "throttled_us", value_of(stat, "throttled_usec"));
    } else if (auto ns = value_of(stat, "throttled_time")) {
      append(&args, "throttled_us", *ns / 1000);
    }
  }
  if (!memory_.directory.empty()) {
    const std::string& at = memory_.directory;
    append_if(&args, "memory_limit", memory_limit(at, memory_.unified));
    std::string used = read_text(at + (memory_.unified ? "/memory.current" : "/memory.usage_in_bytes"));
    if (!used.empty()) append(&args, "memory_used", number(used));
    std::string stat = read_text(at + "/memory.stat");
    if (memory_.unified) {
      append_if(&args, "page_cache", value_of(stat, "file"));
      append_if(&args, "anonymous", value_of(stat, "anon"));
      std::string events = read_text(at + "/memory.events");
      append_if(&args, "limit_hits", value_of(events, "max"));
      append_if(&args, "oom_kills", value_of(events, "oom_kill"));
      append_pressure(&args, read_text(at + "/memory.pressure"), "memory");
    } else {
      append_if(&args, "page_cache", value_of(stat, "total_cache"));
      append_if(&args, "anonymous", value_of(stat, "total_rss"));
      std::string hits = read_text(at + "/memory.failcnt");
      if (!hits.empty()) append(&args, "limit_hits", number(hits));
      append_if(&args, "oom_kills", value_of(read_text(at + "/memory.oom_control"), "oom_kill"));
    }
    uint64_t page = uint64_t(sysconf(_SC_PAGESIZE));
    append_if(&args, "cache_refaults", value_of(stat, "workingset_refault_file"), page);
  }
  if (args.empty()) return false;
  out->push_back({"cgroup", args});
  return true;
}

void append_process_facts(std::string* args) {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  if (uint64_t age = age_us()) append(args, "life_us", age);
  append(args, "cpu_us", micros(used.ru_utime) + micros(used.ru_stime));
  if (auto main = read_schedule("/proc/self/schedstat")) {
    append(args, "main_ran_us", main->ran_ns / 1000);
    append(args, "main_waited_us", main->waited_ns / 1000);
  }
  append(args, "switched_out", uint64_t(used.ru_nivcsw));
  // Not ru_maxrss, which begins with the memory of the program that started this one.
  append_if(args, "rss_peak", value_of(read_text("/proc/self/status"), "VmHWM"), 1024);
  append(args, "major_faults", uint64_t(used.ru_majflt));
  append_io(args, read_text("/proc/self/io"), false);
}

}  // namespace dft
