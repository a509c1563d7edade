// The hang watch: a thread of ours that notices, without the interpreter lock, that a training program makes no
// progress, and then writes down what each of its threads is doing.
//
// Progress is what reaches the step rule and `record/progress.hpp`: batches, calls of models, backward, optimizers,
// collectives, checkpoints. The program hangs if there was none for longer than the limit (DFTRACER_HANG_S) and for ten
// times the longest pause that has been usual lately. The limit is three times as long in start-up, during the first
// steps, while torch compiles, during an evaluation or a checkpoint, at a barrier and between epochs.
//
// A program that does not train is not watched, except that one that joins a process group is watched from there until
// its first step. After its steps, a program without peers may take as long as it likes.
#pragma once

#include "module/cpython_util.hpp"

namespace dft::py {

// A thread trains: watch from now on, if enabled.
void watch_this_process();

// Around a fork: the thread ends, and is started again.
void pause_hang_watch();
void resume_hang_watch();

bool init_hang_watch(PyObject* module);

}  // namespace dft::py
