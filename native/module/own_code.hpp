// Where the program's own code spends its time: a thread of ours looks at the training threads' stacks while the step
// rule says that none of the stages is running.
#pragma once

#include "module/cpython_util.hpp"
#include "module/step_rule.hpp"

namespace dft::py {

// What a training thread shows to others; one of a few that are never freed, or null if all are taken.
struct Shown {
  Now now;
  std::atomic<PyThreadState*> thread{nullptr};
  std::atomic<int64_t> tid{0};
  std::atomic<bool> taken{false};
};
inline constexpr size_t kShownThreads = 16;
extern Shown g_shown[kShownThreads];
Shown* show_thread(PyThreadState* thread);
void hide_thread(Shown* shown);
void hide_all_threads();

// Whether a source file is the program's own: no library's, not the interpreter's, not ours.
bool is_user_code(std::string_view file);

bool init_own_code(PyObject* module);

}  // namespace dft::py
