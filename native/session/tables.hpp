// Made by native/generate.py from src/dftracer/_config.py; do not edit.
// clang-format off
#pragma once

#include <cstdint>

namespace dft {

struct SettingRow {
  const char* name;
  const char* variable;
  const char* kind;  // bool, int, size, choice, text, path, dirs or list
  const char* fallback;
  int64_t low, high;
  bool power_of_two;
  const char* choices[6];
};

inline constexpr SettingRow kSettings[] = {
    {"enable", "DFTRACER_ENABLE", "bool", "0", 0, 9223372036854775807, false, {}},
    {"init", "DFTRACER_INIT", "choice", "FUNCTION", 0, 9223372036854775807, false, {"FUNCTION", "PRELOAD", "HYBRID"}},
    {"log_file", "DFTRACER_LOG_FILE", "path", "./trace", 0, 9223372036854775807, false, {}},
    {"data_dir", "DFTRACER_DATA_DIR", "dirs", "all", 0, 9223372036854775807, false, {}},
    {"disable_io", "DFTRACER_DISABLE_IO", "bool", "0", 0, 9223372036854775807, false, {}},
    {"disable_posix", "DFTRACER_DISABLE_POSIX", "bool", "0", 0, 9223372036854775807, false, {}},
    {"disable_stdio", "DFTRACER_DISABLE_STDIO", "bool", "0", 0, 9223372036854775807, false, {}},
    {"disable_cuda", "DFTRACER_DISABLE_CUDA", "bool", "0", 0, 9223372036854775807, false, {}},
    {"inc_metadata", "DFTRACER_INC_METADATA", "bool", "1", 0, 9223372036854775807, false, {}},
    {"trace_compression", "DFTRACER_TRACE_COMPRESSION", "bool", "1", 0, 9223372036854775807, false, {}},
    {"disable_tids", "DFTRACER_DISABLE_TIDS", "bool", "0", 0, 9223372036854775807, false, {}},
    {"write_buffer_size", "DFTRACER_WRITE_BUFFER_SIZE", "size", "0", 0, 9223372036854775807, false, {}},
    {"log_level", "DFTRACER_LOG_LEVEL", "choice", "ERROR", 0, 9223372036854775807, false, {"ERROR", "WARN", "INFO", "DEBUG"}},
    {"bind_signals", "DFTRACER_BIND_SIGNALS", "bool", "0", 0, 9223372036854775807, false, {}},
    {"set_core_affinity", "DFTRACER_SET_CORE_AFFINITY", "bool", "0", 0, 9223372036854775807, false, {}},
    {"configuration", "DFTRACER_CONFIGURATION", "path", "", 0, 9223372036854775807, false, {}},
    {"ring_size", "DFTRACER_RING_SIZE", "size", "4194304", 65536, 1073741824, true, {}},
    {"ring_dir", "DFTRACER_RING_DIR", "path", "", 0, 9223372036854775807, false, {}},
    {"max_stall_us", "DFTRACER_MAX_STALL_US", "int", "1000", 0, 60000000, false, {}},
    {"rotate_size", "DFTRACER_ROTATE_SIZE", "size", "0", 0, 9223372036854775807, false, {}},
    {"rotate_keep", "DFTRACER_ROTATE_KEEP", "int", "0", 0, 1073741824, false, {}},
    {"max_size", "DFTRACER_MAX_SIZE", "size", "0", 0, 9223372036854775807, false, {}},
    {"mode", "DFTRACER_MODE", "choice", "FULL", 0, 9223372036854775807, false, {"FULL", "BLACKBOX"}},
    {"blackbox_mb", "DFTRACER_BLACKBOX_MB", "int", "256", 1, 1048576, false, {}},
    {"flush_ms", "DFTRACER_FLUSH_MS", "int", "100", 10, 1000, false, {}},
    {"time_metric", "DFTRACER_TIME_METRIC", "choice", "US", 0, 9223372036854775807, false, {"NS", "US", "MS", "SEC"}},
    {"counter_ms", "DFTRACER_COUNTER_MS", "int", "1000", 0, 3600000, false, {}},
    {"enable_aggregation", "DFTRACER_ENABLE_AGGREGATION", "bool", "0", 0, 9223372036854775807, false, {}},
    {"aggregation_type", "DFTRACER_AGGREGATION_TYPE", "choice", "FULL", 0, 9223372036854775807, false, {"FULL", "SELECTIVE"}},
    {"aggregation_file", "DFTRACER_AGGREGATION_FILE", "path", "", 0, 9223372036854775807, false, {}},
    {"trace_interval_ms", "DFTRACER_TRACE_INTERVAL_MS", "int", "1000", 1, 3600000, false, {}},
    {"hang_s", "DFTRACER_HANG_S", "int", "60", 0, 1000000, false, {}},
    {"device_events", "DFTRACER_DEVICE_EVENTS", "bool", "1", 0, 9223372036854775807, false, {}},
    {"auto", "DFTRACER_AUTO", "choice", "OFF", 0, 9223372036854775807, false, {"OFF", "TORCH"}},
    {"auto_modules", "DFTRACER_AUTO_MODULES", "bool", "0", 0, 9223372036854775807, false, {}},
    {"metrics", "DFTRACER_METRICS", "list", "", 0, 9223372036854775807, false, {}},
    {"metrics_ms", "DFTRACER_METRICS_MS", "int", "5000", 100, 3600000, false, {}},
    {"run_name", "DFTRACER_RUN_NAME", "text", "", 0, 9223372036854775807, false, {}},
    {"run_tags", "DFTRACER_RUN_TAGS", "text", "", 0, 9223372036854775807, false, {}},
    {"run_git", "DFTRACER_RUN_GIT", "text", "", 0, 9223372036854775807, false, {}},
};

inline constexpr const char* kChoiceAliases[][2] = {
    {"WARNING", "WARN"},
    {"1", "TORCH"},
    {"TRUE", "TORCH"},
    {"ON", "TORCH"},
    {"YES", "TORCH"},
    {"0", "OFF"},
    {"FALSE", "OFF"},
    {"NO", "OFF"},
};

// Of each list the first that is set counts; lists end with a null.
struct LauncherRow {
  const char* name;
  const char* rank[3];
  const char* local_rank[4];
  const char* world_size[4];
  const char* job[4][3];
};

inline constexpr LauncherRow kLaunchers[] = {
    {"torchrun", {"RANK"}, {"LOCAL_RANK"}, {"WORLD_SIZE"}, {{"TORCHELASTIC_RUN_ID"}}},
    {"openmpi", {"OMPI_COMM_WORLD_RANK"}, {"OMPI_COMM_WORLD_LOCAL_RANK"}, {"OMPI_COMM_WORLD_SIZE"}, {{"PMIX_NAMESPACE"}, {"OMPI_MCA_ess_base_jobid"}, {"SLURM_JOB_ID", "SLURM_STEP_ID"}}},
    {"pmix", {"PMIX_RANK"}, {"PMIX_LOCAL_RANK", "SLURM_LOCALID"}, {"PMIX_SIZE", "PMI_SIZE", "SLURM_NTASKS"}, {{"SLURM_JOB_ID", "SLURM_STEP_ID"}, {"PMIX_NAMESPACE"}}},
    {"pmi", {"PMI_RANK"}, {"PMI_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID"}, {"PMI_SIZE"}, {{"SLURM_JOB_ID", "SLURM_STEP_ID"}, {"PALS_APID"}, {"PMI_JOBID"}}},
    {"mvapich2", {"MV2_COMM_WORLD_RANK"}, {"MV2_COMM_WORLD_LOCAL_RANK"}, {"MV2_COMM_WORLD_SIZE"}, {{"SLURM_JOB_ID", "SLURM_STEP_ID"}, {"MPIRUN_ID"}}},
    {"flux", {"FLUX_TASK_RANK"}, {"FLUX_TASK_LOCAL_ID"}, {"FLUX_JOB_SIZE"}, {{"FLUX_JOB_ID"}}},
    {"jsm", {"JSM_NAMESPACE_RANK"}, {"JSM_NAMESPACE_LOCAL_RANK"}, {"JSM_NAMESPACE_SIZE"}, {{"PMIX_NAMESPACE"}, {"LSB_JOBID"}}},
    {"pals", {"PALS_RANKID"}, {"PALS_LOCAL_RANKID"}, {"PALS_SIZE", "PMI_SIZE"}, {{"PALS_APID"}}},
    {"slurm", {"SLURM_PROCID"}, {"SLURM_LOCALID"}, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, {{"SLURM_JOB_ID", "SLURM_STEP_ID"}, {"SLURM_JOB_ID"}}},
};

}  // namespace dft
