#include "session/prelude.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <climits>
#include <ctime>

#include "format/arguments.hpp"
#include "format/envelope.hpp"
#include "format/json.hpp"
#include "format/md5.hpp"
#include "format/run_record.hpp"
#include "format/step_row.hpp"
#include "record/clock.hpp"
#include "record/process_life.hpp"
#include "record/process_owner.hpp"

namespace dft {
namespace {

constexpr size_t kLongestCommand = 1000;  // in the run's record; another has all of it

std::string read_command_line() {
  std::string out;
  int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  char buf[4096];
  ssize_t n;
  while (fd >= 0 && (n = read(fd, buf, sizeof buf)) > 0) out.append(buf, size_t(n));
  if (fd >= 0) close(fd);
  while (!out.empty() && out.back() == '\0') out.pop_back();
  return out;
}

std::string joined(std::string words, char separator) {
  for (char& c : words)
    if (c == '\0') c = separator;
  return words;
}

// Works without Python's headers: a program with an embedded interpreter has this function.
std::string python_version() {
  auto* version = reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, "Py_GetVersion"));
  std::string text = version ? version() : "";
  return text.substr(0, text.find(' '));
}

std::string read_executable() {
  char buf[PATH_MAX];
  ssize_t n = readlink("/proc/self/exe", buf, sizeof buf);
  return n > 0 ? std::string(buf, size_t(n)) : "unknown";
}

// When the process began, as far as the kernel's clock ticks tell. The preloaded library begins with the program;
// what the process was before an exec is not this program's.
uint64_t process_start_us(const Session& s, uint64_t trace_start_us) {
  uint64_t ticks = process_start_time(uint32_t(getpid()));
  long per_second = sysconf(_SC_CLK_TCK);
  timespec up;
  if (s.role == "preload" || ticks == 0 || per_second <= 0 || clock_gettime(CLOCK_BOOTTIME, &up) != 0)
    return trace_start_us;
  int64_t age_us = int64_t(up.tv_sec) * 1000000 + up.tv_nsec / 1000 - int64_t(ticks) * (1000000 / per_second);
  uint64_t began = uint64_t(int64_t(realtime_ns() / 1000) - age_us);
  return age_us > 0 && began < trace_start_us ? began : trace_start_us;
}

std::string affinity_mask() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return "unknown";
  std::string out;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (!CPU_ISSET(i, &set)) continue;
    if (!out.empty()) out += ',';
    out += std::to_string(i);
  }
  return out;
}

}  // namespace

size_t prelude_bound(const Session* s) {
  size_t strings = read_command_line().size() + s->host.size() + s->settings.version.size() + 2 * PATH_MAX;
  for (auto& [key, value] : s->settings.facts) strings += key.size() + value.size();
  if (s->settings.record_affinity) strings += affinity_mask().size();
  return strings * 6 + 6 * kLongestCommand + (9 + s->settings.facts.size()) * 512;
}

Prelude make_prelude(Session* s) {
  FileHeader* h = s->header();
  int64_t pid = h->pid;
  Prelude out;
  auto metadata = [&](const char* kind, std::string_view key, std::string_view value, std::string_view more = {}) {
    out.text += s->lines.metadata_line(h->next_id.fetch_add(1), pid, kind, key, value, more);
    out.facts.count(0);
    ++out.records;
  };
  char cwd_buffer[PATH_MAX] = "unknown";
  std::string cwd = getcwd(cwd_buffer, sizeof cwd_buffer) ? cwd_buffer : "unknown";
  std::string words = read_command_line();
  std::string command = joined(words, ';');
  std::string executable = read_executable();
  uint64_t start_us = (s->clock.first().mono_ns + s->clock.epoch_offset()) / 1000;
  RunRecord run{s->run.id,
                start_us,
                own_owner(),
                s->run.rank,
                s->run.world_size,
                s->run.attempt,
                s->run.launcher,
                s->host,
                s->settings.version,
                python_version(),
                joined(words, ' ').substr(0, kLongestCommand)};
  metadata("HH", s->host, s->host_hash, run_arguments(run));
  std::vector<std::pair<std::string, std::string>> named;  // by the user: name, tags, commit
  for (auto& fact : s->settings.facts)
    if (fact.first.starts_with("run_")) named.push_back(fact);
  s->writer.set_row_facts(row_facts(run, pid, named), int64_t(process_start_us(*s, start_us)));
  metadata("thread_name", std::to_string(pid), "thread_name");
  metadata("FH", cwd, short_hash(cwd));
  metadata("SH", command, short_hash(command));
  metadata("SH", executable, short_hash(executable));
  for (auto& [key, value] : s->settings.facts) metadata("PR", key, value);
  if (s->settings.record_affinity) metadata("PR", "core_affinity", affinity_mask());

  time_t seconds = time_t(start_us / 1000000);
  char date[64];
  tm local;
  localtime_r(&seconds, &local);
  strftime(date, sizeof date, "%a %b %e %H:%M:%S %Y", &local);
  std::string args;
  append_arg(args, "cwd", short_hash(cwd));
  append_arg(args, "cmd_hash", short_hash(command));
  append_arg(args, "exec_hash", short_hash(executable));
  append_arg(args, "version", s->settings.version);
  append_arg(args, "date", date);
  append_arg(args, "ppid", getppid());
  append_arg(args, "process_start_us", int64_t(process_start_us(*s, start_us)));
  out.text += s->lines.event_line(h->next_id.fetch_add(1), pid, envelope::kStart, start_us, args);
  out.facts.count(start_us);
  ++out.records;
  return out;
}

}  // namespace dft
