#include "record/process_owner.hpp"

#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "record/process_life.hpp"

namespace dft {
namespace {

// Where pids mean the same as here; empty if unknown.
std::string place() {
  uint64_t boot = own_boot(), ns = own_pid_namespace();
  return boot == 0 || ns == 0 ? "" : std::to_string(boot) + "/" + std::to_string(ns) + "/";
}

}  // namespace

std::string own_owner() {
  std::string where = place();
  uint64_t start = process_start_time(uint32_t(getpid()));
  if (where.empty() || start == 0) return "";
  return where + std::to_string(getpid()) + "/" + std::to_string(start);
}

bool is_known_dead(const std::string& owner) {
  std::string where = place();
  if (where.empty() || !owner.starts_with(where)) return false;
  const char* pid = owner.c_str() + where.size();
  char* end;
  uint64_t number = strtoull(pid, &end, 10);
  if (end == pid || *end != '/' || number == 0 || number > UINT32_MAX) return false;
  uint64_t start = strtoull(end + 1, nullptr, 10);
  return start != 0 && process_start_time(uint32_t(number)) != start;
}

}  // namespace dft
