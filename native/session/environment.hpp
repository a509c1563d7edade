// The settings and the rank from the environment, for preloaded programs and for Python. The tables of both are in
// src/dftracer/_config.py.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "record/settings.hpp"
#include "session/tables.hpp"

namespace dft {

struct SettingValue {
  bool is_text = false;
  int64_t number = 0;  // also of a switch
  std::string text;
};
using SettingValues = std::map<std::string, SettingValue>;

// A value, or what is wrong with it as the end of a sentence that begins with the setting.
struct SettingReading {
  std::optional<SettingValue> value;
  std::string problem;
};
DFT_API const SettingRow* find_setting(std::string_view name);
// `is_number`: it was given as a number, which has no unit.
DFT_API SettingReading read_setting(const SettingRow& row, const std::string& raw, bool is_number = false);
// Every setting: from the environment, or its default if it is not set there or invalid.
DFT_API SettingValues settings_in_environment();
DFT_API Settings settings_from(const SettingValues& values);
// Where traces wait that are meant for a store (`s3://bucket/job/trace`): below DFTRACER_SPOOL, otherwise in a
// directory of the user's own. Other names stay as they are.
DFT_API std::string spool_path(const std::string& name);

struct Rank {
  std::string rank, local_rank, world_size;  // digits, or empty where the launcher does not say
  std::string launcher;
  const LauncherRow* row = nullptr;
};
// The value of a variable; empty if it is not set.
using Variables = std::function<std::string(const char*)>;
DFT_API Rank rank_among(const Variables& variables);
DFT_API Rank rank_in_environment();
// As PR records state them.
DFT_API std::vector<std::pair<std::string, std::string>> rank_facts(const Rank& rank);

}  // namespace dft
