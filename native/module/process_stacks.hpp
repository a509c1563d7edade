// What the threads of a process are doing, seen from outside: the Python stack of each, the call of the kernel that it
// is in, and the file of that call. The process itself takes no part in it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "module/cpython_util.hpp"

namespace dft::py {

struct SeenFrame {
  std::string function, file;
  int line;
};

struct SeenThread {
  int64_t tid = 0;
  std::string name;
  char state = '?';               // as in /proc: R, S, D, T, Z
  std::string call, path;         // `read` and the file it reads; empty where the kernel does not tell
  std::vector<SeenFrame> frames;  // innermost first
};

struct SeenProcess {
  int pid = 0;
  std::string name;
  char state = '?';
  std::vector<SeenThread> threads;  // those that run Python, the main one first
};

SeenProcess look_at_process(int pid);
std::vector<int> children_of(int pid);

// "train.py:12 step", the innermost frame of the program itself; empty without one.
std::string users_place(const SeenThread& thread);
std::string place_of(const SeenFrame& frame);
// The place of the main thread, or of another if the main one has none of the program's own.
std::string place_in(const SeenProcess& process);

// A list: of each thread `tid`, `name`, `state`, `call`, `path` and `frames` ("/b.py:3 f", innermost first).
void append_threads(std::string& out, const SeenProcess& process);
// An object: `pid`, `name`, `state`, `where`, `open_file` and `threads`.
void append_process(std::string& out, const SeenProcess& process);

// stacks_of(pid): append_process() as text.
PyObject* stacks_of(PyObject*, PyObject* pid);

}  // namespace dft::py
