#include "intercept/intercept.hpp"

#include <cstring>
#include <vector>

#include "format/arguments.hpp"
#include "format/json.hpp"
#include "intercept/data_dirs.hpp"
#include "intercept/files.hpp"
#include "intercept/hook_table.hpp"
#include "intercept/io_record.hpp"
#include "record/settings.hpp"
#include "record/warn_once.hpp"

namespace dft {

void* g_real[kSymbols] = {};

namespace {

bool g_on = false;
bool g_posix = true, g_stdio = true;

bool everywhere(std::string_view) { return true; }

const std::vector<Hook>& all_hooks() {
  static const auto* hooks = [] {
    auto* out = new std::vector<Hook>;
    add_open_hooks(out);
    add_descriptor_hooks(out);
    add_path_hooks(out);
    add_directory_hooks(out);
    add_transfer_hooks(out);
    add_stdio_hooks(out);
    add_process_hooks(out);
    add_number_hooks(out);
    add_loader_hooks(out);
    return out;
  }();
  return *hooks;
}

void name_calls() {
  static bool once = [] {
    for (int i = 0; i < int(Call::kCount); ++i) g_io_names[i] = intern(kCalls[i].name, kCalls[i].category);
    return true;
  }();
  (void)once;
}

}  // namespace

void start_interception(const Settings& settings) {
  if (g_on || (!settings.trace_posix && !settings.trace_stdio)) return;
  DataDirs dirs;
  dirs.set(settings.data_dir, settings.import_dirs);
  if (!prepare_files(dirs)) {
    warn_once("no address space to keep track of open files; I/O is not traced");
    return;
  }
  name_calls();
  g_posix = settings.trace_posix;
  g_stdio = settings.trace_stdio;
  for (int i = 0; i < int(Call::kCount); ++i) g_io_on[i] = strcmp(kCalls[i].category, "POSIX") == 0 ? g_posix : g_stdio;
  // Both kinds are replaced even if one is not recorded: streams and descriptors open and close each other.
  patch_hooks(all_hooks(), everywhere);
  g_on = true;
}

void stop_interception() {
  if (!g_on) return;
  g_on = false;
  restore_hooks(all_hooks());
  forget_files();
}

void set_data_dirs(const std::string& list) {
  Settings changed = settings();
  changed.data_dir = list;
  configure(std::move(changed));
  if (!g_on) return;
  DataDirs dirs;
  dirs.set(list, settings().import_dirs);
  prepare_files(dirs);
  forget_files();
}

bool interception_on() { return g_on; }

void append_interception_facts(std::string* args) {
  if (!g_on) return;
  PatchFacts facts = patch_facts();
  append_arg(*args, "io", g_posix && g_stdio ? "POSIX STDIO" : g_posix ? "POSIX" : "STDIO");
  append_arg(*args, "io_data_dir", settings().data_dir);
  append_arg(*args, "io_patched_calls", facts.slots);
  append_arg(*args, "io_patched_objects", facts.objects);
  if (facts.refused) append_arg(*args, "io_refused_calls", facts.refused);
  append_arg(*args, "io_invisible",
             "calls inside libc, raw system calls, io_uring, static programs, page faults of mapped files, GPUDirect");
}

}  // namespace dft
