#include "record/warn_once.hpp"

#include <unistd.h>

#include <set>

#include "record/quiet_writes.hpp"

namespace dft {
namespace {

struct Said {
  std::mutex mutex;
  std::set<std::string> texts;
};
// Leaked: threads may still record while static destructors run.
Said* const g_said = new Said;

}  // namespace

std::mutex& warnings_mutex() { return g_said->mutex; }

void warn_once(const std::string& text) {
  std::lock_guard lock(g_said->mutex);
  if (!g_said->texts.insert(text).second) return;
  std::string line = "dftracer: " + text + "\n";
  QuietWrites quiet;
  ssize_t ignored = write(2, line.data(), line.size());
  (void)ignored;
}

}  // namespace dft
