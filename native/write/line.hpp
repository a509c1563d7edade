// One record, one line of JSON. Used by the writer and by the recovery of dead processes' rings.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "record/clock.hpp"
#include "record/record.hpp"
#include "write/like_line.hpp"

namespace dft {

class LineFormatter {
 public:
  using NameLookup = std::function<std::pair<std::string, std::string>(uint32_t)>;

  void setup(uint32_t pid, std::string host_hash, bool inc_metadata, bool disable_tids, NameLookup lookup);

  struct Line {
    uint64_t ts = 0;  // us; 0 for records without a time
    uint64_t dur = 0;
    bool event = false;
    LikeLine like;  // `back` is 0 unless an earlier line of the same text differs only in a few numbers
  };
  // What is written from now on is another text: no line of it is like one written before.
  void begin_text() { ++text_number_; }
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
  const std::string& names_text(uint32_t name) { return make_prefix(name).text; }
  std::pair<std::string, std::string> names_of(uint32_t name) const { return lookup_(name); }
  std::string counter_line(uint64_t id, std::string_view name, uint64_t ts_us, std::string_view args) const;

 private:
  struct Prefix {
    std::string text;  // ,"name":"forward","cat":"compute","pid":1,"tid":
  };
  const Prefix& prefix(uint32_t name);
  const Prefix& make_prefix(uint32_t name);
  char* write_times(char* p, uint64_t start_ns, uint64_t end_ns, Line* line);
  char* put_time(char* p, uint64_t us);
  // The last line about one kind of call of one thread, and where what changes from one to the next lies in it.
  struct Shape {
    enum Field : uint8_t { kId, kTs, kDur, kParent, kFile, kValues, kRet = kValues + 4, kFields };
    static constexpr size_t kLongest = 512;

    bool is_of(const Record& r, int64_t its_tid, const IoPayload& io) const;
    void change(Field field, uint64_t v, LikeLine& like);
    void change_digits(Field field, uint64_t v, LikeLine& like);
    void change_all_digits(Field field, uint64_t v, LikeLine::Run& run);
    void change_file(uint64_t hash, LikeLine& like);

    uint16_t size = 0;  // 0: there is none
    // With any other of these the line has other texts.
    uint16_t level;
    bool has_file;
    uint32_t name;
    int64_t tid;
    uint64_t call;  // its number, its error, and which values it has

    uint64_t number[kFields];  // a signed one as its bits
    uint16_t at[kFields];      // 0: not in this line
    uint8_t digits[kFields];
    const char* last;  // where it was written
    uint64_t text_number;
    char text[kLongest];
  };
  static_assert(Shape::kFields <= LikeLine::kMostRuns);
  Shape* shape_of(const Record& r, int64_t tid);
  char* write_io(const Record& r, int64_t tid, const ClockMap& clock, char* out, Line* line);
  char* write_first(Shape* shape, const Record& r, int64_t tid, const IoPayload& io, char* out, Line* line);
  char* write_like(Shape& shape, const Record& r, const IoPayload& io, char* out, Line* line);
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
  static constexpr unsigned kShapeBits = 6;
  std::unique_ptr<Shape[]> shapes_;
  uint64_t text_number_ = 0;
};

std::string_view payload_of(const Record& r);

}  // namespace dft
