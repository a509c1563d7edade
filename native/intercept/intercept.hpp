// The interception of I/O and of CUDA as a whole: on with a session, off with finalize.
#pragma once

#include <string>

#include "api.hpp"

namespace dft {

struct Settings;

// Patches the process if the settings ask for it. Harmless if it is already patched.
void start_interception(const Settings& settings);
// Restores every replaced call.
DFT_API void stop_interception();
// Other directories from now on.
DFT_API void set_data_dirs(const std::string& list);
bool interception_on();
// Whether the calls of this thread are recorded; pairs nest.
DFT_API void hide_io(bool hidden);
// For the closing record: what was intercepted, and what cannot be.
void append_interception_facts(std::string* args);

// _exit and exec, which run no exit handlers: once per process.
void install_exit_hooks();

// process_hooks.cpp
void record_exec(const char* path, int error);

}  // namespace dft
