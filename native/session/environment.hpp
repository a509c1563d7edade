// The settings and the rank from the environment, read the same way as in src/dftracer/_config.py and _rank.py.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
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

// The value of `raw`; nothing if it is invalid.
std::optional<SettingValue> read_setting(const SettingRow& row, const std::string& raw);
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
DFT_API Rank rank_in_environment();
// As PR records state them.
DFT_API std::vector<std::pair<std::string, std::string>> rank_facts(const Rank& rank);

}  // namespace dft
