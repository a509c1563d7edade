// Reads traces back without any code of the engine.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "json_reader.hpp"

// A directory under the system's temporary one, removed with everything in it at the end.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  std::vector<std::string> files(const std::string& suffix = "") const;

 private:
  std::string path_;
  int owner_;
};

std::string read_bytes(const std::string& path);

struct Member {
  uint32_t member_size, text_size, lines;
  uint64_t first_ts, last_ts;
  std::string text;
};
// Walks the members by the sizes their headers state; checks that these cover the file exactly and that
// what a header says of its content is so.
std::vector<Member> read_members(const std::string& path);
std::string read_text(const std::string& path);

struct Trace {
  std::vector<Json> records;
  bool closed = false;  // the last line is `]`

  std::vector<Json> named(const std::string& name) const;
  // The `n` argument of the events called `name`, in file order, per thread.
  std::map<int64_t, std::vector<int64_t>> numbers(const std::string& name) const;
  const Json& end() const { return records.back(); }
};
// Checks what holds for every trace: `[` first, one valid object a line, ids unique, the opening records.
Trace read_trace(const std::string& path);
