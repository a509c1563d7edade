#include "session/run.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string_view>

#include "format/md5.hpp"
#include "record/clock.hpp"
#include "record/process_life.hpp"
#include "session/environment.hpp"
#include "write/existing_trace.hpp"
#include "write/trace_file.hpp"

namespace dft {
namespace {

constexpr size_t kLongestId = 64, kLongestJob = 40;
constexpr size_t kMaxNames = 64;
constexpr int kMaxRuns = 1000;

std::string variable(const char* name) {
  const char* v = getenv(name);
  return v ? v : "";
}

std::string host_name() {
  char host[256] = "unknown";
  gethostname(host, sizeof host - 1);
  return host;
}

// Characters allowed in a file name. If something had to be changed, a hash keeps names distinct.
std::string cleaned(const std::string& text, size_t longest) {
  std::string out = text;
  for (char& c : out)
    if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-", c)) c = '-';
  if (out == text && out.size() <= longest && !out.starts_with('.')) return out;
  if (out.starts_with('.')) out[0] = '-';
  return out.substr(0, longest - 9) + "-" + short_hash(text).substr(0, 8);
}

// In chronological order, to the millisecond.
std::string new_id() {
  uint64_t now = realtime_ns();
  time_t seconds = time_t(now / 1000000000);
  tm local;
  char date[32], id[64];
  localtime_r(&seconds, &local);
  strftime(date, sizeof date, "%Y%m%d-%H%M%S", &local);
  std::string seed = host_name() + ":" + std::to_string(getpid()) + ":" + std::to_string(now);
  snprintf(id, sizeof id, "%s-%03x%s", date, unsigned(now / 1000000 % 1000), short_hash(seed).substr(0, 5).c_str());
  return id;
}

std::string file_text(const std::string& path) {
  std::string out;
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  char buffer[4096];
  ssize_t n;
  while (fd >= 0 && (n = read(fd, buffer, sizeof buffer)) > 0) out.append(buffer, size_t(n));
  if (fd >= 0) close(fd);
  return out;
}

uint32_t parent_of(uint32_t pid) {
  std::string stat = file_text("/proc/" + std::to_string(pid) + "/stat");
  size_t at = stat.rfind(')');
  return at == stat.npos || at + 4 > stat.size() ? 0 : uint32_t(strtoul(stat.c_str() + at + 4, nullptr, 10));
}

// The launcher's process on this host: the nearest ancestor that was started without what it gives to its ranks.
std::string launching_process(const std::string& given_variable) {
  std::string entry = given_variable + "=" + variable(given_variable.c_str());
  entry.push_back('\0');
  uint32_t pid = uint32_t(getppid());
  while (pid > 1) {
    std::string environment = '\0' + file_text("/proc/" + std::to_string(pid) + "/environ");
    if (environment.find('\0' + entry) == environment.npos) break;
    pid = parent_of(pid);
  }
  return host_name() + ":" + std::to_string(pid) + ":" + std::to_string(process_start_time(pid));
}

bool is_local(const std::string& address) {
  return address == "localhost" || address.starts_with("127.") || address == "::1";
}

// Shared by all ranks of one start by the launcher, and no others.
std::string job_of(const Rank& rank) {
  std::string name = rank.launcher + "-";
  for (const auto& group : rank.row->job) {
    std::string joined;
    bool all = group[0] != nullptr;
    for (const char* each : group) {
      if (!each) break;
      std::string value = variable(each);
      all = all && !value.empty() && value != "none";
      joined += (joined.empty() ? "" : "-") + value;
    }
    if (all) return name + cleaned(joined, kLongestJob);
  }
  std::string address = variable("MASTER_ADDR");
  bool elastic = !variable("TORCHELASTIC_RUN_ID").empty();
  bool several_hosts = elastic ? atoi(variable("GROUP_WORLD_SIZE").c_str()) > 1
                               : atoi(rank.world_size.c_str()) > 1 && !is_local(address);
  std::string unique;
  if (rank.launcher == "torchrun" && several_hosts && !address.empty()) {
    unique = address + ":" + variable("MASTER_PORT");
  } else {
    const char* set = rank.row->rank[0];
    unique = launching_process(elastic ? "TORCHELASTIC_RUN_ID" : set);
  }
  return name + short_hash(unique);
}

int attempt_in_environment() {
  for (const char* name : {"TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"})
    if (std::string v = variable(name); !v.empty()) return atoi(v.c_str());
  return 0;
}

std::string nth(const std::string& job, int n) { return n == 1 ? job : job + "." + std::to_string(n); }

// The number of the run of this job that the file belongs to, 0 if to none.
int number_in_job(const ExistingTrace& trace, const std::string& job) {
  if (trace.run == job) return 1;
  if (!trace.run.starts_with(job + ".")) return 0;
  int n = atoi(trace.run.c_str() + job.size() + 1);
  return trace.run == nth(job, n) ? n : 0;
}

std::string replaced(std::string stem, const std::string& id) {
  size_t at = stem.find("{run}");
  return at == stem.npos ? stem : stem.replace(at, 5, id);
}

// Whether a process of the run with this rank has already run here and ended.
bool has_been(const std::string& stem, const Run& run) {
  auto is_it = [&](const std::string& path) {
    ExistingTrace t = look_at(path);
    return t.run == run.id && t.rank == run.rank && t.attempt == run.attempt && t.has_ended();
  };
  for (const char* suffix : {".pfw.gz", ".pfw"})
    if (is_it(stem + suffix)) return true;
  std::string directory = directory_of(stem);
  std::string base = stem.substr(directory == "/" ? 1 : directory.size() + 1) + "-";
  DIR* dir = opendir(directory.c_str());
  bool found = false;
  while (dirent* entry = dir && !found ? readdir(dir) : nullptr) {
    std::string_view name = entry->d_name;
    if (!name.starts_with(base)) continue;
    std::string_view rest = name.substr(base.size());
    if (rest.starts_with(rank_digits(run)) || rest.starts_with(run.id))
      found = is_it(directory + "/" + std::string(name));
  }
  if (dir) closedir(dir);
  return found;
}

// A process whose rank has been used by one that has ended belongs to a new run of the same job: two lines of one
// batch script. One that the launcher has started again belongs to the same.
std::string run_of_job(const std::string& job, const std::string& stem, Run run) {
  int n = 1;
  for (const char* suffix : {".pfw.gz", ".pfw"})
    n = std::max(n, number_in_job(look_at(replaced(stem, job) + suffix), job));
  for (; n < kMaxRuns; ++n) {
    run.id = nth(job, n);
    if (!has_been(replaced(stem, run.id), run)) break;
  }
  return run.id;
}

std::string name_hash(const std::string& run, const std::string& stem) { return short_hash(run + "\n" + stem); }

std::vector<std::string> given_names() {
  std::vector<std::string> out;
  std::string text = variable(kNamesVariable);
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find(',', at), text.size());
    if (end > at) out.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

// The process, as it appears in a name's entry: it survives an exec.
std::string this_process() {
  return std::to_string(getpid()) + "." + std::to_string(process_start_time(uint32_t(getpid())));
}

}  // namespace

Run identify_run(const std::string& stem) {
  Run run;
  Rank rank = rank_in_environment();
  run.launcher = rank.launcher;
  run.rank = rank.rank;
  run.world_size = rank.world_size;
  run.attempt = attempt_in_environment();
  if (std::string inherited = variable(kRunVariable); !inherited.empty()) {
    run.id = cleaned(inherited, kLongestId);
  } else if (!rank.row) {
    run.id = new_id();
  } else if (!stem.empty()) {
    run.id = run_of_job(job_of(rank), stem, run);
  }
  return run;
}

std::string rank_digits(const Run& run) {
  return short_hash(run.id + "/" + run.rank + "/" + std::to_string(run.attempt)).substr(0, 8);
}

bool is_given_by_another(const std::string& run, const std::string& stem) {
  std::string entry = name_hash(run, stem) + ".", own = entry + this_process();
  for (const std::string& each : given_names())
    if (each.starts_with(entry) && each != own) return true;
  return false;
}

std::string given_names_with(const std::string& run, const std::string& path) {
  std::string stem = trace_stem(path);
  std::vector<std::string> names = given_names();
  std::string own = name_hash(run, stem) + "." + this_process();
  std::erase(names, own);
  names.push_back(own);
  std::string out;
  for (size_t i = names.size() > kMaxNames ? names.size() - kMaxNames : 0; i < names.size(); ++i)
    out += (out.empty() ? "" : ",") + names[i];
  return out;
}

}  // namespace dft
