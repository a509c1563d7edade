#include "record/warn_once.hpp"

#include <new>
#include <set>

#include "record/descriptors.hpp"

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
  try {
    if (!g_said->texts.insert(text).second) return;
  } catch (const std::bad_alloc&) {
    return;  // without memory for it, it could not be said only once
  }
  // Without a copy: this may be about memory.
  iovec line[] = {{const_cast<char*>("dftracer: "), 10},
                  {const_cast<char*>(text.data()), text.size()},
                  {const_cast<char*>("\n"), 1}};
  write_to_stderr(line, 3);
}

}  // namespace dft
