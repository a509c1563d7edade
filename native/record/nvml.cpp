#include "record/nvml.hpp"

#include <dlfcn.h>
#include <link.h>

#include <cstring>

#include "format/arguments.hpp"

namespace dft {
namespace {

constexpr int kSuccess = 0;
constexpr unsigned kSmClock = 1, kGpuTemperature = 0;
constexpr unsigned kMaxDevices = 64;

struct Utilization {
  unsigned gpu, memory;
};
struct Memory {
  unsigned long long total, free, used;
};

// The functions in use; a null one is missing in this version of the library.
struct Library {
  int (*init)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device)(unsigned, void**) = nullptr;
  int (*utilization)(void*, Utilization*) = nullptr;
  int (*memory)(void*, Memory*) = nullptr;
  int (*power)(void*, unsigned*) = nullptr;
  int (*power_limit)(void*, unsigned*) = nullptr;
  int (*clock)(void*, unsigned, unsigned*) = nullptr;
  int (*max_clock)(void*, unsigned, unsigned*) = nullptr;
  int (*throttle)(void*, unsigned long long*) = nullptr;
  int (*temperature)(void*, unsigned, unsigned*) = nullptr;
} g_nvml;

template <typename F>
void resolve(void* library, F* function, const char* name) {
  if (!*function) *function = reinterpret_cast<F>(dlsym(library, name));
}

struct Search {
  uint64_t seen, now;
  bool driver;
};

int look_for_driver(dl_phdr_info* info, size_t, void* data) {
  auto* search = static_cast<Search*>(data);
  search->now = info->dlpi_adds;
  if (search->now == search->seen) return 1;
  const char* name = strrchr(info->dlpi_name, '/');
  search->driver |= name && strncmp(name, "/libcuda.so", 11) == 0;
  return search->driver;
}

std::mutex g_driver_mutex;

}  // namespace

std::mutex& driver_mutex() { return g_driver_mutex; }

bool Nvml::driver_loaded() {
  if (driver_) return true;
  Search search{libraries_, 0, false};
  {
    std::lock_guard lock(g_driver_mutex);
    dl_iterate_phdr(look_for_driver, &search);
  }
  libraries_ = search.now;
  driver_ = search.driver;
  return driver_;
}

bool Nvml::load() {
  if (tried_) return !devices_.empty();
  tried_ = true;
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return false;
  Library& n = g_nvml;
  resolve(library, &n.init, "nvmlInit_v2");
  resolve(library, &n.count, "nvmlDeviceGetCount_v2");
  resolve(library, &n.device, "nvmlDeviceGetHandleByIndex_v2");
  resolve(library, &n.utilization, "nvmlDeviceGetUtilizationRates");
  resolve(library, &n.memory, "nvmlDeviceGetMemoryInfo");
  resolve(library, &n.power, "nvmlDeviceGetPowerUsage");
  resolve(library, &n.power_limit, "nvmlDeviceGetEnforcedPowerLimit");
  resolve(library, &n.clock, "nvmlDeviceGetClockInfo");
  resolve(library, &n.max_clock, "nvmlDeviceGetMaxClockInfo");
  resolve(library, &n.throttle, "nvmlDeviceGetCurrentClocksEventReasons");
  resolve(library, &n.throttle, "nvmlDeviceGetCurrentClocksThrottleReasons");  // its name in older versions
  resolve(library, &n.temperature, "nvmlDeviceGetTemperature");
  unsigned count = 0;
  if (!n.init || !n.count || !n.device || n.init() != kSuccess || n.count(&count) != kSuccess) return false;
  for (unsigned i = 0; i < count && i < kMaxDevices; ++i) {
    Device d{nullptr, 0, 0};
    if (n.device(i, &d.handle) != kSuccess) d.handle = nullptr;  // not accessible; the numbering stays
    unsigned value = 0;
    if (d.handle && n.max_clock && n.max_clock(d.handle, kSmClock, &value) == kSuccess) d.max_sm_mhz = value;
    if (d.handle && n.power_limit && n.power_limit(d.handle, &value) == kSuccess) d.power_limit_mw = value;
    devices_.push_back(d);
  }
  return !devices_.empty();
}

void Nvml::sample(std::vector<Counter>* out) {
  const Library& n = g_nvml;
  for (size_t i = 0; i < devices_.size(); ++i) {
    const Device& d = devices_[i];
    if (!d.handle) continue;
    std::string args;
    Utilization busy{};
    if (n.utilization && n.utilization(d.handle, &busy) == kSuccess) {
      append_arg(args, "utilization", int64_t(busy.gpu));
      append_arg(args, "memory_utilization", int64_t(busy.memory));
    }
    Memory memory{};
    if (n.memory && n.memory(d.handle, &memory) == kSuccess) {
      append_arg(args, "memory_used", int64_t(memory.used));
      append_arg(args, "memory_total", int64_t(memory.total));
    }
    unsigned value = 0;
    if (n.power && n.power(d.handle, &value) == kSuccess) append_arg(args, "power_mw", int64_t(value));
    if (d.power_limit_mw) append_arg(args, "power_limit_mw", int64_t(d.power_limit_mw));
    if (n.clock && n.clock(d.handle, kSmClock, &value) == kSuccess) append_arg(args, "sm_mhz", int64_t(value));
    if (d.max_sm_mhz) append_arg(args, "sm_max_mhz", int64_t(d.max_sm_mhz));
    if (n.temperature && n.temperature(d.handle, kGpuTemperature, &value) == kSuccess)
      append_arg(args, "temperature", int64_t(value));
    unsigned long long reasons = 0;
    if (n.throttle && n.throttle(d.handle, &reasons) == kSuccess) append_arg(args, "throttle", int64_t(reasons));
    if (!args.empty()) out->push_back({"gpu." + std::to_string(i), args});
  }
}

}  // namespace dft
