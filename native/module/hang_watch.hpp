// The hang watch: a thread of ours that notices, without the interpreter lock, that a training program no longer moves,
// and then writes down what every thread of it is doing.
//
// Movement is what the step rule and `record/progress.hpp` are told: batches, calls of models, backward, optimizers,
// collectives, checkpoints. The program stands still if there was none for longer than its patience, or for ten times
// the slowest pause that has been usual lately. Three times the patience holds in start-up, during the first steps,
// while torch compiles, during an evaluation or a checkpoint, at a barrier and between epochs.
//
// A program that does not train is not watched, except that one that takes part in a process group is watched from
// there until its first step. Alone, a program may do for as long as it likes what comes after its steps.
#pragma once

#include "module/cpython_util.hpp"

namespace dft::py {

// A thread trains: watch from now on, if that is wanted.
void watch_this_process();

// Around a fork: it is not there, and comes back.
void hang_watch_leaves();
void hang_watch_returns();

bool init_hang_watch(PyObject* module);

}  // namespace dft::py
