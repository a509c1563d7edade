#include "write/name_claim.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <vector>

#include "write/existing_trace.hpp"
#include "write/moving_lock.hpp"
#include "write/trace_file.hpp"

namespace dft {
namespace {

constexpr int kTries = 50;
constexpr useconds_t kPause = 2000;
constexpr int kMaxOfOneRun = 1000;

std::string suffix_of(const std::string& path) { return path.substr(without_suffix(path).size()); }

std::string run_name(const ExistingTrace& trace) {
  if (!trace.run.empty()) return trace.run;
  time_t seconds = time_t(trace.modified_s);
  tm local;
  char date[32];
  localtime_r(&seconds, &local);
  strftime(date, sizeof date, "%Y%m%d-%H%M%S", &local);
  return date;
}

// `<stem>-part<N><suffix>` for every N there is.
std::vector<std::pair<std::string, int>> parts_of(const std::string& path) {
  std::vector<std::pair<std::string, int>> found;
  std::string directory = directory_of(path), suffix = suffix_of(path);
  std::string head = without_suffix(path).substr(directory == "/" ? 1 : directory.size() + 1) + "-part";
  DIR* dir = opendir(directory.c_str());
  if (!dir) return found;
  while (dirent* entry = readdir(dir)) {
    std::string name = entry->d_name;
    if (!name.starts_with(head) || !name.ends_with(suffix) || name.size() <= head.size() + suffix.size()) continue;
    std::string number = name.substr(head.size(), name.size() - head.size() - suffix.size());
    if (number.find_first_not_of("0123456789") == number.npos && number.size() < 9)
      found.emplace_back(directory + "/" + name, atoi(number.c_str()));
  }
  closedir(dir);
  return found;
}

bool of_one_run(const ExistingTrace& a, const ExistingTrace& b) {
  return a.kind == b.kind && a.run == b.run && a.owner == b.owner;
}

// A closed first part says nothing about later ones.
bool all_parts_have_ended(const std::string& path, const ExistingTrace& first) {
  if (first.has_ended()) return true;
  if (!first.closed || !first.continues) return false;
  bool last_seen = false;
  for (const auto& [name, number] : parts_of(path)) {
    ExistingTrace part = look_at(name);
    if (!of_one_run(part, first)) continue;
    if (!part.closed) return false;
    last_seen = last_seen || !part.continues;
  }
  return last_seen;
}

void move_parts(const std::string& path, const ExistingTrace& first, const std::string& target) {
  for (const auto& [name, number] : parts_of(path)) {
    if (!of_one_run(look_at(name), first)) continue;
    rename_exclusively(name, without_suffix(target) + "-part" + std::to_string(number) + suffix_of(target));
  }
}

// False when the file must stay.
bool move_aside(const std::string& path, const ExistingTrace& seen) {
  MovingLock lock(path);
  if (!lock.is_held()) return lock.is_in_use();
  if (!look_at(path).is_same_file(seen)) return true;  // not the file that was judged: judge again
  std::string stem = without_suffix(path) + "-" + run_name(seen), suffix = suffix_of(path);
  for (int n = 1; n < kMaxOfOneRun; ++n) {
    std::string target = stem;
    if (n > 1) target.append("-").append(std::to_string(n));
    target += suffix;
    int error = rename_exclusively(path, target);
    if (error == EEXIST && look_at(target).is_same_file(seen)) {  // by a mover that was killed half-way
      unlink(path.c_str());
      return true;
    }
    if (error == EEXIST) continue;
    if (error != 0) return error == ENOENT;
    if (look_at(target).is_same_file(seen)) {
      move_parts(path, seen, target);
      rename_exclusively(rows_of(path), rows_of(target));
    } else {
      rename_exclusively(target, path);  // another process was faster, and this one is its file
    }
    return true;
  }
  return false;
}

bool may_be_moved(const std::string& path, ExistingTrace* there, const Claimant& claimant) {
  if (!there->closed && there->has_ended()) {
    if (claimant.complete_trace && !claimant.complete_trace(path)) return false;
    *there = look_at(path);
  }
  return all_parts_have_ended(path, *there);
}

}  // namespace

int rename_exclusively(const std::string& from, const std::string& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) return errno;
  if (link(from.c_str(), to.c_str()) == 0) return unlink(from.c_str()) == 0 ? 0 : errno;
  if (errno != EPERM && errno != ENOSYS && errno != EOPNOTSUPP) return errno;
  // No links either: create the name exclusively, then rename the file over what we created.
  int fd = open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return errno;
  close(fd);
  if (rename(from.c_str(), to.c_str()) == 0) return 0;
  int error = errno;
  unlink(to.c_str());
  return error;
}

Claim claim_name(const std::string& from, const std::string& to, const Claimant& claimant) {
  int unreadable = 0;
  for (int i = 0; i < kTries; ++i) {
    int error = rename_exclusively(from, to);
    if (error == 0) return Claim::kGranted;
    if (error != EEXIST) {
      errno = error;
      return Claim::kFailed;
    }
    ExistingTrace there = look_at(to);
    if (there.kind == ExistingTrace::kMissing) continue;
    if (there.kind == ExistingTrace::kForeign) {
      // A live trace whose first lines are being rewritten briefly looks like this.
      if (++unreadable > 5) return Claim::kForeign;
    } else {
      if (there.run == claimant.run && !there.run.empty()) return Claim::kTaken;
      if (!may_be_moved(to, &there, claimant) || !move_aside(to, there)) return Claim::kTaken;
      if (access(to.c_str(), F_OK) != 0) continue;
    }
    usleep(kPause);
  }
  return Claim::kTaken;
}

}  // namespace dft
