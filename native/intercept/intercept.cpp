#include "intercept/intercept.hpp"

#include <cstring>
#include <vector>

#include "format/arguments.hpp"
#include "format/json.hpp"
#include "intercept/collectives.hpp"
#include "intercept/data_dirs.hpp"
#include "intercept/device_record.hpp"
#include "intercept/files.hpp"
#include "intercept/hook_table.hpp"
#include "intercept/io_record.hpp"
#include "intercept/session_calls.hpp"
#include "record/settings.hpp"
#include "record/warn_once.hpp"

namespace dft {

void* g_real[kSymbols] = {};
constinit SessionCalls g_session_calls;  // filled in by another file's initialisation

namespace {

bool g_io = false, g_device = false;
bool g_posix = true, g_stdio = true;

bool everywhere(std::string_view) { return true; }

const std::vector<Hook>& io_hooks() {
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
    return out;
  }();
  return *hooks;
}

const std::vector<Hook>& loader_hooks() {
  static const auto* hooks = [] {
    auto* out = new std::vector<Hook>;
    add_loader_hooks(out);
    return out;
  }();
  return *hooks;
}

const std::vector<Hook>& device_hooks() {
  static const auto* hooks = [] {
    auto* out = new std::vector<Hook>;
    add_device_hooks(out);
    add_comm_hooks(out);
    return out;
  }();
  return *hooks;
}

const std::vector<Hook>& gloo_hooks() {
  static const auto* hooks = [] {
    auto* out = new std::vector<Hook>;
    add_gloo_hooks(out);
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

void start_io(const Settings& settings) {
  if (g_io || (!settings.trace_posix && !settings.trace_stdio)) return;
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
  patch_hooks(io_hooks(), everywhere);
  g_io = true;
}

void start_device(const Settings& settings) {
  if (g_device || !settings.trace_cuda) return;
  prepare_device_records();
  patch_copied_hooks(device_hooks(), kCopies, calls_device);
  prepare_gloo_records();
  patch_hooks(gloo_hooks(), holds_gloo);
  g_device = true;
}

void append_io_facts(std::string* args) {
  PatchFacts facts = patch_facts();
  append_arg(*args, "io", g_posix && g_stdio ? "POSIX STDIO" : g_posix ? "POSIX" : "STDIO");
  append_arg(*args, "io_data_dir", settings().data_dir);
  append_arg(*args, "io_patched_calls", facts.slots);
  append_arg(*args, "io_patched_objects", facts.objects);
  if (facts.refused) append_arg(*args, "io_refused_calls", facts.refused);
  append_arg(*args, "io_invisible",
             "calls inside libc, raw system calls, io_uring, static programs, page faults of mapped files, GPUDirect");
}

// Nothing to say of a program that calls neither the CUDA runtime nor NCCL.
void append_device_facts(std::string* args) {
  PatchFacts facts = copied_patch_facts();
  if (facts.refused) append_arg(*args, "cuda_refused_calls", facts.refused);
  if (!facts.slots) return;
  append_arg(*args, "cuda_patched_calls", facts.slots);
  append_arg(*args, "cuda_patched_objects", facts.objects);
  append_short_calls(args);
}

}  // namespace

void start_interception(const Settings& settings) {
  bool before = interception_on();
  start_io(settings);
  start_device(settings);
  if (!before && interception_on()) patch_hooks(loader_hooks(), everywhere);
}

void stop_interception() {
  if (!interception_on()) return;
  restore_hooks(loader_hooks());
  if (g_device) {
    restore_hooks(device_hooks());
    restore_hooks(gloo_hooks());
  }
  g_device = false;
  if (!g_io) return;
  g_io = false;
  restore_hooks(io_hooks());
  forget_files();
}

void set_data_dirs(const std::string& list) {
  Settings changed = settings();
  changed.data_dir = list;
  configure(std::move(changed));
  if (!g_io) return;
  DataDirs dirs;
  dirs.set(list, settings().import_dirs);
  prepare_files(dirs);
  forget_files();
}

bool interception_on() { return g_io || g_device; }

void append_interception_facts(std::string* args) {
  if (g_io) append_io_facts(args);
  if (g_device) append_device_facts(args);
}

}  // namespace dft
