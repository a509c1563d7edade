#include "session/environment.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>

namespace dft {
namespace {

// What Python's int() ignores around a number, and what its strip() takes away.
constexpr const char* kSpaces = " \t\n\r\v\f";
constexpr const char* kBlanks = " \t\n\r\v\f\x1c\x1d\x1e\x1f";

std::string stripped(const std::string& text, const char* blanks = kBlanks) {
  size_t from = text.find_first_not_of(blanks);
  return from == text.npos ? "" : text.substr(from, text.find_last_not_of(blanks) - from + 1);
}

std::string changed(std::string text, int (*change)(int)) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 128) c = char(change(c));
  return text;
}

bool all_digits(const std::string& text) { return !text.empty() && text.find_first_not_of("0123456789") == text.npos; }

bool contains(std::initializer_list<const char*> words, const std::string& text) {
  return std::any_of(words.begin(), words.end(), [&](const char* w) { return text == w; });
}

std::optional<int64_t> read_bool(const std::string& raw) {
  std::string text = changed(stripped(raw), tolower);
  if (contains({"1", "true", "on", "yes", "y", "t"}, text)) return 1;
  if (contains({"0", "false", "off", "no", "n", "f"}, text)) return 0;
  return {};
}

// A number that was read; too large for one of ours, it is out of every range.
struct Number {
  int64_t value = 0;
  bool too_large = false;
};
constexpr Number kTooLarge{0, true};

// As Python's int() does: a sign, and single underscores between digits.
std::optional<Number> read_int(const std::string& raw) {
  std::string text = stripped(raw, kSpaces), digits;
  size_t at = !text.empty() && (text[0] == '+' || text[0] == '-');
  bool digit_before = false;
  for (size_t i = at; i < text.size(); ++i) {
    bool digit = text[i] >= '0' && text[i] <= '9';
    if (!digit && (text[i] != '_' || !digit_before)) return {};
    if (digit) digits += text[i];
    digit_before = digit;
  }
  if (!digit_before) return {};
  errno = 0;
  int64_t value = strtoll(digits.c_str(), nullptr, 10);
  if (errno) return kTooLarge;
  return Number{at && text[0] == '-' ? -value : value};
}

// The whole part of 0.<fraction> * 2^bits, exactly.
uint64_t scaled(std::string fraction, int bits) {
  uint64_t out = 0;
  for (int i = 0; i < bits; ++i) {
    int carry = 0;
    for (size_t k = fraction.size(); k-- > 0;) {
      int twice = 2 * (fraction[k] - '0') + carry;
      fraction[k] = char('0' + twice % 10);
      carry = twice / 10;
    }
    out = out << 1 | uint64_t(carry);
  }
  return out;
}

std::optional<Number> read_size(const std::string& raw) {
  std::string text = changed(stripped(raw), toupper);
  size_t end = text.find_last_not_of("KMGTIB ");
  std::string digits = end == text.npos ? "" : text.substr(0, end + 1);
  std::string unit = stripped(text.substr(digits.size()));
  if (unit.size() == 3 && unit.ends_with("IB")) {
    unit = unit.substr(0, 1);
  } else if (unit.size() <= 2 && unit.ends_with("B")) {
    unit.pop_back();
  }
  size_t power = unit.empty() ? 0 : std::string("KMGT").find(unit);
  if (unit.size() > 1 || power == std::string::npos || digits.empty() || digits.size() > 30) return {};
  int bits = unit.empty() ? 0 : 10 * (int(power) + 1);
  size_t point = digits.find('.');
  std::string whole = digits.substr(0, point);
  std::string fraction = point == digits.npos ? "" : digits.substr(point + 1);
  if (!all_digits(whole) || (point != digits.npos && (!all_digits(fraction) || unit.empty()))) return {};
  errno = 0;
  uint64_t n = strtoull(whole.c_str(), nullptr, 10);
  if (errno || n > uint64_t(INT64_MAX) >> bits) return kTooLarge;
  return Number{int64_t((n << bits) + scaled(fraction, bits))};
}

std::optional<std::string> read_choice(const SettingRow& row, const std::string& raw) {
  std::string text = changed(stripped(raw), toupper);
  for (auto& [alias, name] : kChoiceAliases)
    if (text == alias) text = name;
  for (const char* choice : row.choices)
    if (choice && text == choice) return text;
  return {};
}

std::string first_number(const Variables& variables, const char* const* names, size_t count) {
  for (size_t i = 0; i < count && names[i]; ++i) {
    std::string text = stripped(variables(names[i]));
    // Any program may have its own idea of a variable called RANK.
    if (all_digits(text) && text.size() <= 10) return std::to_string(strtoull(text.c_str(), nullptr, 10));
  }
  return "";
}

template <size_t N>
std::string first_number(const Variables& variables, const char* const (&names)[N]) {
  return first_number(variables, names, N);
}

std::string in_environment(const char* name) {
  const char* found = getenv(name);
  return found ? found : "";
}

std::string listed(const SettingRow& row) {
  std::string out;
  for (const char* choice : row.choices)
    if (choice) out.append(out.empty() ? "" : ", ").append(choice);
  return out;
}

SettingReading wrong(std::string problem) { return {{}, std::move(problem)}; }

SettingReading read_number(const SettingRow& row, const std::string& raw, bool in_bytes) {
  std::optional<Number> found = in_bytes ? read_size(raw) : read_int(raw);
  if (!found) return wrong(in_bytes ? "is not a size" : "is not a whole number");
  int64_t n = found->value;
  if (found->too_large || n < row.low || n > row.high)
    return wrong("is out of range " + std::to_string(row.low) + ".." + std::to_string(row.high));
  if (row.power_of_two && (n & (n - 1))) return wrong("is not a power of two");
  return {SettingValue{false, n, ""}, ""};
}

}  // namespace

const SettingRow* find_setting(std::string_view name) {
  auto row = std::find_if(std::begin(kSettings), std::end(kSettings), [&](auto& each) { return name == each.name; });
  return row == std::end(kSettings) ? nullptr : row;
}

SettingReading read_setting(const SettingRow& row, const std::string& raw, bool is_number) {
  std::string_view kind = row.kind;
  if (kind == "bool") {
    auto on = read_bool(raw);
    return on ? SettingReading{SettingValue{false, *on, ""}, ""}
              : wrong("is not a switch (1/0, true/false, on/off, yes/no)");
  }
  if (kind == "int" || kind == "size") return read_number(row, raw, kind == "size" && !is_number);
  if (!row.choices[0]) return {SettingValue{true, 0, kind == "text" ? stripped(raw) : raw}, ""};
  auto choice = read_choice(row, raw);
  return choice ? SettingReading{SettingValue{true, 0, *choice}, ""} : wrong("is not one of " + listed(row));
}

SettingValues settings_in_environment() {
  SettingValues out;
  for (const SettingRow& row : kSettings) {
    const char* raw = getenv(row.variable);
    auto given = raw && *raw ? read_setting(row, raw).value : std::nullopt;
    out[row.name] = given ? *given : read_setting(row, row.fallback).value.value_or(SettingValue{});
  }
  return out;
}

Settings settings_from(const SettingValues& values) {
  Settings s;
  auto number = [&](const char* name, auto* out) {
    auto it = values.find(name);
    if (it != values.end()) *out = static_cast<std::remove_pointer_t<decltype(out)>>(it->second.number);
  };
  auto text = [&](const char* name, std::string* out) {
    auto it = values.find(name);
    if (it != values.end()) *out = it->second.text;
  };
  number("trace_compression", &s.compress);
  number("inc_metadata", &s.inc_metadata);
  number("disable_tids", &s.disable_tids);
  number("bind_signals", &s.bind_signals);
  number("set_core_affinity", &s.record_affinity);
  number("ring_size", &s.ring_size);
  number("max_stall_us", &s.max_stall_us);
  uint64_t member_size = 0;
  number("write_buffer_size", &member_size);
  if (member_size) s.member_size = member_size;
  number("flush_ms", &s.flush_ms);
  number("counter_ms", &s.counter_ms);
  number("enable_aggregation", &s.aggregate);
  std::string aggregation_type;
  text("aggregation_type", &aggregation_type);
  s.aggregate_selected = aggregation_type == "SELECTIVE";
  text("aggregation_file", &s.aggregation_file);
  number("trace_interval_ms", &s.interval_ms);
  number("hang_s", &s.hang_s);
  number("rotate_size", &s.rotate_size);
  number("rotate_keep", &s.rotate_keep);
  number("max_size", &s.max_size);
  std::string mode;
  text("mode", &mode);
  if (mode == "BLACKBOX") {
    uint64_t megabytes = 0;
    number("blackbox_mb", &megabytes);
    s.black_box = megabytes << 20;
    s.rotate_size = s.black_box / kBlackBoxParts;
    s.rotate_keep = s.max_size = 0;
    s.facts.emplace_back("mode", "blackbox");
  }
  text("ring_dir", &s.ring_dir);
  text("data_dir", &s.data_dir);
  text("log_file", &s.prefix);
  s.prefix = spool_path(s.prefix);
  for (const char* name : {"run_name", "run_tags", "run_git"}) {
    std::string given;
    text(name, &given);
    if (!given.empty()) s.facts.emplace_back(name, given);
  }
  bool no_io = true, no_posix = false, no_stdio = false;
  number("disable_io", &no_io);
  number("disable_posix", &no_posix);
  number("disable_stdio", &no_stdio);
  s.trace_posix = !no_io && !no_posix;
  s.trace_stdio = !no_io && !no_stdio;
  bool no_cuda = true;
  number("disable_cuda", &no_cuda);
  s.trace_cuda = !no_cuda;
  return s;
}

std::string spool_path(const std::string& name) {
  size_t scheme = name.find("://");
  bool is_url = scheme != name.npos && scheme > 1 && std::all_of(name.begin(), name.begin() + long(scheme), [](char c) {
                  return isalnum(static_cast<unsigned char>(c)) || c == '+' || c == '-' || c == '.';
                });
  if (!is_url) return name;
  std::string below = name.substr(0, scheme);
  if (below == "file") return name.substr(scheme + 3);
  // No part of the name leads out of the spool.
  for (size_t at = scheme + 3; at < name.size();) {
    size_t end = std::min(name.find('/', at), name.size());
    std::string part = name.substr(at, end - at);
    if (!part.empty()) below += "/" + (part == ".." || part == "." ? std::string(part.size(), '_') : part);
    at = end + 1;
  }
  if (const char* given = getenv("DFTRACER_SPOOL"); given && *given) return std::string(given) + "/" + below;
  const char* place = getenv("TMPDIR");
  std::string own = std::string(place && *place ? place : "/tmp") + "/dftracer-spool-" + std::to_string(getuid());
  struct stat found;
  mkdir(own.c_str(), 0700);
  bool is_ours = lstat(own.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == getuid();
  return (is_ours ? own : "dftracer-spool") + "/" + below;
}

Rank rank_among(const Variables& variables) {
  for (const LauncherRow& row : kLaunchers) {
    std::string rank = first_number(variables, row.rank);
    if (!rank.empty())
      return {rank, first_number(variables, row.local_rank), first_number(variables, row.world_size), row.name, &row};
  }
  return {};
}

Rank rank_in_environment() { return rank_among(in_environment); }

std::vector<std::pair<std::string, std::string>> rank_facts(const Rank& rank) {
  std::vector<std::pair<std::string, std::string>> out;
  for (auto& [key, value] : {std::pair{"rank", &rank.rank},
                             {"local_rank", &rank.local_rank},
                             {"world_size", &rank.world_size},
                             {"launcher", &rank.launcher}})
    if (!value->empty()) out.emplace_back(key, *value);
  return out;
}

}  // namespace dft
