// Sums instead of single events: which records are summed up, and the sums that are not written yet.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "record/settings.hpp"

namespace dft {

// An event as rules see it.
struct RuleFacts {
  std::string_view category, name;
  int64_t ts_us = 0, dur_us = 0;
};

// The process as rules see it.
struct RuleProcess {
  int64_t rank = -1;  // -1: no launcher has set one
  std::string app;    // the file name of the executable
};

using Rule = std::function<bool(const RuleFacts&)>;

// `cat == 'POSIX' AND (name LIKE 'read%' OR dur < 100)`; empty, with what is wrong in `error`, if it cannot be read.
Rule parse_rule(std::string_view text, const RuleProcess& process, std::string* error);

// What SELECTIVE sums up: events that one of `inclusion` matches and none of `exclusion`.
struct RuleFile {
  std::vector<Rule> inclusion, exclusion;
  // Two lists of texts under these names, as in YAML; the reason if it is anything else.
  std::string read(std::string_view text, const RuleProcess& process);
  bool matches(const RuleFacts& event) const;
};

class Aggregation {
 public:
  static constexpr size_t kMaxWithFile = 1024;  // new sums in a period; further files share one

  struct Key {
    uint64_t interval, file;
    uint32_t name;
    bool operator==(const Key&) const = default;
  };
  struct Sum {
    uint64_t calls = 0, us = 0, min_us = UINT64_MAX, max_us = 0, bytes = 0, errors = 0;
    std::array<uint32_t, 48> histogram{};  // by the number of bits of the duration in us
  };

  // Reads the rule file, if there is one; a mistake in it is reported, and then nothing is summed up.
  void setup(const Settings& settings);
  bool enabled() const { return enabled_; }
  bool selective() const { return selective_; }
  uint64_t interval_us() const { return interval_us_; }
  bool matches(const RuleFacts& event) const { return rules_.matches(event); }

  // Forgets how many sums there have been: called every DFTRACER_FLUSH_MS.
  void begin_period() { with_file_ = 0; }
  // The sums of a call's name, file and interval; a file beyond the most shares one with others like it.
  Sum& of(uint32_t name, uint64_t file, uint64_t ts_us);
  static void add(Sum& sum, uint64_t us, int64_t bytes, bool failed);
  bool empty() const { return sums_.empty(); }
  size_t size() const { return sums_.size(); }
  // All of them, in the order of their keys; afterwards there are none.
  std::vector<std::pair<Key, Sum>> take();
  // The arguments of a sum's record after `hhash`.
  std::string arguments(const Key& key, const Sum& sum) const;

 private:
  struct Hash {
    size_t operator()(const Key& k) const {
      return size_t((k.interval * 0x9E3779B97F4A7C15ull ^ k.file) * 0xff51afd7ed558ccdull ^ k.name);
    }
  };
  bool enabled_ = false, selective_ = false;
  uint64_t interval_us_ = 1000000;
  size_t with_file_ = 0;  // made in this period, written or not
  RuleFile rules_;
  std::unordered_map<Key, Sum, Hash> sums_;
};

}  // namespace dft
