// One line of a trace to one row: every dialect of the format, in one pass, without building a JSON tree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "columns.hpp"
#include "intern.hpp"
#include "json_text.hpp"
#include "shape.hpp"

namespace dft::load {

// No recorder writes a longer line; without a limit, 3 MB of gzip could require 3 GB of memory. The Python readers have
// the same (dftracer/format/reader.py).
inline constexpr size_t kLineLimit = size_t{16} << 20;

// Times in us beyond are damage: it is the year 2255, and sums of many such times would not fit.
inline constexpr int64_t kTimeLimit = int64_t{1} << 53;
// The same where the unit is another one.
inline constexpr int64_t kTimeLimitOfUnits = int64_t{1} << 62;

struct Dictionaries {
#define X(n) Dictionary n;
  DFT_CODE_COLUMNS(X)
#undef X
};

struct Filter {
  int64_t ts_min = std::numeric_limits<int64_t>::min();
  int64_t ts_max = std::numeric_limits<int64_t>::max();
  int64_t step_min = kMissing, step_max = std::numeric_limits<int64_t>::max();
  int64_t epoch_min = kMissing, epoch_max = std::numeric_limits<int64_t>::max();
  std::vector<std::string> names, cats;
  std::unordered_set<int64_t> pids;
  bool any = false;
  int64_t time_limit = kTimeLimit;
  uint32_t left_out = 0;  // columns that are not wanted, a bit each
};

struct LineCounts {
  uint64_t lines = 0;     // lines that held an object or tried to
  uint64_t events = 0;    // rows kept
  uint64_t counters = 0;  // of them, samples of the machine
  uint64_t filtered = 0;  // rows left out by the filter
  uint64_t meta = 0;
  uint64_t bad = 0;  // not a record: skipped
};

// Scans blocks of text on one thread.
class LineScanner {
 public:
  LineScanner(Dictionaries& dictionaries, const Filter& filter, bool keep_text = false);

  // All records of [text, text+size) into `out`. Returns the bytes of a last line without its newline
  // that does not hold a whole record (0 if none).
  size_t scan(const char* text, size_t size, Columns& out);

  LineCounts counts;

 private:
  struct Learner;
  void take(Field f) noexcept { row_.has |= 1u << f; }
  void clear_row() noexcept {
    row_.has = 0;
    row_.ph = 0;
    rest_.clear();
  }
  bool object(const char*& p, const char* end, Columns& out);
  // `late_args`: where arguments begin that have to wait, because `ph` decides how they are read and comes after them.
  bool any_object(const char*& p, const char* end, const char*& late_args);
  bool member(const Text& k, const char* key_at, const char*& p, const char* end, const char*& late_args);
  bool arguments(const char*& p, const char* end);
  bool argument(const Text& k, const char*& p, const char* end, const Learner& learn);
  bool number(const char*& p, const char* end, const Learner& learn, int64_t& slot, Field field);
  bool other_argument(const char*& p, const char* end, const Learner& learn);
  bool more_arguments(const char*& p, const char* end, Shape* shape, size_t n);
  bool known_arguments(const char*& p, const char* end, Shape& shape);
  size_t repeated_arguments(const char*& p, const char* end, Shape& shape);
  bool integer_or_rest(const char*& p, const char* end, const char* key_at, int64_t& out, Field field);
  bool text_code(const char*& p, const char* end, Interner& in, int32_t& out, Field field);
  bool usual_head(const char*& p, const char* end, Shape*& shape);
  bool learn_head(const char* s, const char* end, Shape& shape);
  bool finish_row(const char* late_args, const char* end, Columns& out);
  void rest(const char* from, const char* to);
  std::string_view plain(const Text& t, std::string& buffer);
  bool wanted();

  void keep(const char* from, const char* to, Columns& out);

  const Filter* filter_;
  bool keep_text_;
#define X(n) Interner n##_;
  DFT_CODE_COLUMNS(X)
#undef X
  Dictionaries* dictionaries_;
  std::vector<int8_t> name_ok_, cat_ok_;  // by code: 0 unknown, 1 kept, 2 left out
  Row row_{};
  Text meta_key_{}, meta_value_{};
  std::string rest_, buffer_;
  Shapes shapes_;
  // What the previous row had, and nearly always this one has too: the text around its host, and its file.
  char last_host_[45] = {};
  int32_t last_host_code_ = kNoCode;
  char last_file_[16] = {};
  int32_t last_file_code_ = kNoCode;
  uint8_t id_digits_ = 0, tid_digits_ = 0;
  int32_t start_code_, end_code_, tracer_code_;
};

}  // namespace dft::load
