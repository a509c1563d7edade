// The step rule as Python's boundaries see it: `Training` is a thread's rule, `LoaderPass` one pass over a loader.
#pragma once

#include <string_view>

#include "module/boundary.hpp"
#include "module/cpython_util.hpp"
#include "module/own_code.hpp"
#include "module/step_rule.hpp"

namespace dft::py {

struct Training {
  PyObject_HEAD
  StepRule* rule;
  Shown* shown;  // to other threads
  uint32_t installation;
  PyObject* latest;  // the LoaderPass that the latest batch came from
  PyObject* facts;   // which task of which worker made the batch that is about to be given, alternating keys and values
  int64_t
      scaling;  // the optimizer that a gradient scaler steps; 0: none, -1: every optimizer step now belongs to one step
  bool scaled;  // and whether it did
  bool muted;   // a framework tells what happens
  int64_t over;  // how many steps subscribers know to be over
};

int64_t rule_clock();

// Tells subscribers of the steps that have ended. Not called inside the rule: they may do anything.
void tell_ended_steps(Training* t);
inline void tell_steps(Training* t) {
  if (DFT_UNLIKELY(t->rule->over() != t->over)) tell_ended_steps(t);
}

// This thread's, or of the thread whose backward it works for; null, without an exception, where there can be none.
// A new reference.
Training* training_here();

// Whether torch exports or compiles what runs now, by calling it: `torch.compiler._is_compiling_flag`.
bool torch_compiles();

// Where a program crosses a boundary. All return false, with an exception set, if one came from outside
// meanwhile (KeyboardInterrupt). A batch is requested, and has arrived; `pass` is a LoaderPass.
bool fetch_begins(Training* t, PyObject* iterator, int64_t* at);
bool is_pass(PyObject* object);
bool is_latest_pass(Training* t, PyObject* iterator);
bool fetched(Training* t, PyObject* pass, int64_t start);
bool loader_ended(Training* t, PyObject* pass, int64_t start);
bool fetch_failed(Training* t, PyObject* pass, int64_t start, std::string_view error);
bool backward_begins(Training* t);
bool backward_ends(Training* t, std::string_view error);
bool transform_begins(Training* t);
bool transform_ends(Training* t);
bool optimizer_begins(Training* t, PyObject* optimizer);
bool optimizer_ends(Training* t, PyObject* optimizer, bool skipped);

// Whether automatic tracing is on.
bool follows_training();
// The program's own numbers of its step and epoch; -1: not given.
void program_counts(int64_t step, int64_t epoch);

// Whether torch has gradients switched on for this thread.
bool gradients_on();

bool init_training(PyObject* module);

}  // namespace dft::py
