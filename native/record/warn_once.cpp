#include "record/warn_once.hpp"

#include <new>
#include <set>

#include "record/descriptors.hpp"

namespace dft {
namespace {

struct Warned {
  std::mutex mutex;
  std::set<std::string> texts;
};
// Leaked: threads may still record while static destructors run.
Warned* const g_warned = new Warned;

}  // namespace

std::mutex& warnings_mutex() { return g_warned->mutex; }

void warn_once(const std::string& text) {
  std::lock_guard lock(g_warned->mutex);
  try {
    if (!g_warned->texts.insert(text).second) return;
  } catch (const std::bad_alloc&) {
    return;  // without memory to remember it, it would be repeated
  }
  // Without a copy: this may be about memory.
  iovec line[] = {{const_cast<char*>("dftracer: "), 10},
                  {const_cast<char*>(text.data()), text.size()},
                  {const_cast<char*>("\n"), 1}};
  write_to_stderr(line, 3);
}

}  // namespace dft
