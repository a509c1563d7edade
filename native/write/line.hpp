// One record, one line of JSON. Used by the writer and by the recovery of dead processes' rings.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "record/clock.hpp"
#include "record/record.hpp"

namespace dft {

class LineFormatter {
 public:
  using NameLookup = std::function<std::pair<std::string, std::string>(uint32_t)>;

  void setup(uint32_t pid, std::string host_hash, bool inc_metadata, bool disable_tids, NameLookup lookup);

  struct Line {
    uint64_t ts = 0;  // us; 0 for records without a time
    uint64_t dur = 0;
    bool event = false;
  };
  // Upper bound of the line's length.
  size_t bound(const Record& r);
  // Writes the line at `out` (bound() bytes of room) and returns its end.
  char* write(const Record& r, int64_t tid, const ClockMap& clock, char* out, Line* line);

  // Lines the writer makes itself.
  std::string metadata_line(uint64_t id, int64_t tid, std::string_view kind, std::string_view key,
                            std::string_view value, std::string_view more_args = {}) const;
  std::string event_line(uint64_t id, int64_t tid, std::string_view name, uint64_t ts_us, std::string_view args) const;
  // `names`: what names_text() or envelope::append_names() gives; `args` follow the host's hash.
  std::string aggregated_line(uint64_t id, std::string_view names, uint64_t ts_us, std::string_view args) const;
  const std::string& names_text(uint32_t name) { return prefix(name).text; }
  std::pair<std::string, std::string> names_of(uint32_t name) const { return lookup_(name); }
  std::string counter_line(uint64_t id, std::string_view name, uint64_t ts_us, std::string_view args) const;

 private:
  struct Prefix {
    std::string text;  // ,"name":"forward","cat":"compute","pid":1,"tid":
  };
  const Prefix& prefix(uint32_t name);
  char* write_times(char* p, uint64_t start_ns, uint64_t end_ns, Line* line);
  char* put_time(char* p, uint64_t us);
  char* write_io(const Record& r, int64_t tid, const ClockMap& clock, char* out, Line* line);
  char* write_strings(const Record& r, std::string_view payload, int64_t tid, const ClockMap& clock, char* out,
                      Line* line);

  uint64_t second_ = 0;  // the one whose digits are kept
  char second_text_[24] = {};
  size_t second_size_ = 0;
  uint32_t pid_ = 0;
  bool inc_metadata_ = true;
  bool disable_tids_ = false;
  std::string host_hash_;
  std::string args_head_;  // ,"ph":"X","args":{"hhash":"...","p_idx":
  NameLookup lookup_;
  std::vector<Prefix> prefixes_;
};

std::string_view payload_of(const Record& r);

}  // namespace dft
