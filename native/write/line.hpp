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

// In us.
struct EventTimes {
  uint64_t ts, dur;
};
EventTimes times_of(const Record& r, const ClockMap& clock);

// A call whose line has been written: what step rows want to know.
struct WrittenCall {
  const Record* record;
  uint64_t ts, dur;  // us
};

// Before there is a writer thread: a fork while it makes them would leave them half made.
void make_line_tables();

class LineFormatter {
 public:
  using NameLookup = std::function<std::pair<std::string, std::string>(uint32_t)>;

  void setup(uint32_t pid, std::string host_hash, bool inc_metadata, bool disable_tids, NameLookup lookup);

  struct Line {
    uint64_t ts = 0;  // us; 0 for records without a time
    uint64_t dur = 0;
    bool event = false;
  };
  // What is written from now on is another text: no line of it is like one written before.
  void begin_text() { ++text_number_; }
  // Upper bound of the line's length.
  size_t bound(const Record& r);
  // Writes the line at `out` (bound() bytes of room) and returns its end. If it is like an earlier one of the same
  // text, `hints` records how; the text began `begin` bytes before.
  char* write(const Record& r, int64_t tid, const ClockMap& clock, char* out, Line* line, LikeLines* hints = nullptr,
              uint64_t begin = 0);
  // Calls that follow each other in the ring of a thread, and the text their lines go to.
  struct Calls {
    uint8_t* data;
    uint64_t mask, read, head;
    uint64_t next_id;  // of those without one
    int64_t tid;
    char* text;
    uint64_t used, limit;  // lines may begin before the limit, and need kMaxAlike bytes behind it
  };
  // The same as write() for some of them: up to the first record that is not a call like an earlier one, which may have
  // got its id, or kMaxCalls. Returns how many.
  unsigned write_calls(Calls& calls, const ClockMap& clock, LikeLines& hints, WrittenCall* written);
  static constexpr size_t kMaxAlike = 512;
  static constexpr unsigned kMaxCalls = 64;

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
  char* write_times(char* p, const Record& r, const ClockMap& clock, Line* line);
  char* put_time(char* p, uint64_t us);
  // A number in a line.
  struct Number {
    uint64_t value;  // a signed one as its bits
    // From there on are this many values of which only the last four digits change (of ids and times), or the last
    // eight, if there are that many (of the others).
    uint64_t from;
    uint32_t values;
    uint32_t last_four;  // digits, as they are in the text
    uint16_t at;         // 0: not in this line
    uint16_t last_at;    // of the last four
    uint8_t digits;

    void set(uint64_t v, unsigned its_place, unsigned its_digits, bool counts);
    void move(unsigned by) {
      if (!at) return;
      at = uint16_t(at + by);
      last_at = uint16_t(last_at + by);
    }
  };
  // What is known about one line.
  struct LineHints {
    LikeRun* run;
    uint64_t back;
    void add(uint32_t from, unsigned size, unsigned was, uint32_t first = 0, uint32_t last = 0, bool changed = true) {
      *run = {from, uint16_t(back), uint16_t(first), uint16_t(last), uint8_t(size)};
      run += changed;
      back += uint64_t(size) - was;
    }
    void add_digits(uint32_t from, unsigned size, uint32_t low, uint32_t digits, bool changed = true);
  };
  // The last line about one kind of call of one thread, and where what changes from one to the next lies in it.
  struct Shape {
    enum Field : uint8_t { kId, kTs, kDur, kParent, kFile, kValues, kRet = kValues + 4, kFields };
    static bool counts(Field field) { return field <= kTs; }

    bool is_of(const Record& r, int64_t its_tid, const IoPayload& io) const;
    // They return the hints so far, so that these need not be in memory.
    LineHints count(Field field, uint64_t v, char* out, LineHints hints);
    LineHints change(Field field, uint64_t v, char* out, LineHints hints);
    LineHints change_digits(Field field, uint64_t v, char* out, LineHints hints);
    LineHints change_all_digits(Field field, uint64_t v, char* out, LineHints hints);
    LineHints change_place(const Record& r, const IoPayload& io, char* out, LineHints hints);

    // With any other of these the line has other texts.
    uint64_t head = 0;  // size, kind, flags and level; 0: there is no line
    uint64_t name;      // and the size of the payload
    int64_t tid;
    uint64_t call;  // its number, its error, and which values it has
    bool has_file;
    uint8_t values;  // how many of them are in the text
    uint16_t size;

    uint64_t text_number = 0;
    uint32_t begin = 0;  // in its text
    Number numbers[kFields];
    char text[kMaxAlike];
  };
  static_assert(Shape::kFields < LikeLines::kMaxRuns);
  struct ShapePair {
    Shape shape[2];
  };
  Shape* shapes_of(const Record& r, int64_t tid);
  Shape* shape_of(const Record& r, int64_t tid, const IoPayload& io);
  Shape* new_shape(const Record& r, int64_t tid);
  unsigned find_shapes(Calls& calls, const ClockMap& clock, WrittenCall* written, Shape** shapes);
  char* write_first(const Record& r, int64_t tid, const ClockMap& clock, char* out, Line* line, uint32_t begin,
                    uint64_t text_number);
  char* write_like(Shape& shape, const Record& r, const IoPayload& io, char* out, uint64_t ts, uint64_t dur,
                   LikeLines& hints, LikeLines::Cursor& cursor, uint32_t begin, uint64_t text_number);
  char* write_alike(const Record& r, int64_t tid, const ClockMap& clock, char* out, Line* line, LikeLines& hints,
                    uint64_t begin);
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
  static constexpr unsigned kShapeBits = 5;
  std::unique_ptr<ShapePair[]> shapes_;
  uint64_t text_number_ = 1;  // 0: none that a line could be like
};

std::string_view payload_of(const Record& r);

}  // namespace dft
