// Takes records out of the rings, turns them into text, compresses it, and commits it to the trace file.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "record/clock.hpp"
#include "record/ring_file.hpp"
#include "record/settings.hpp"
#include "write/aggregation.hpp"
#include "write/black_box.hpp"
#include "write/file_names.hpp"
#include "write/gzip.hpp"
#include "write/line.hpp"
#include "write/row_maker.hpp"
#include "write/trace_file.hpp"

namespace dft {

struct RingSlot {
  MappedRing map;
  uint64_t read = 0;                                       // the writer's position; `tail` follows it at each commit
  uint64_t numbered = 0;                                   // up to here the calls have ids...
  uint64_t next_id = 0;                                    // ...from this one on
  enum State : int { kUsed, kReleased, kFree, kRetired };  // retired: emptied, but never used again
  std::atomic<int> state{kUsed};
  int64_t named_tid = 0;  // the thread whose name is in the current file
  int named_part = 0;
};

// What the trace says about its process at the start; made when the session begins to record.
struct Prelude {
  std::string text;
  MemberFacts facts;
  uint64_t records = 0;
};

class Writer {
 public:
  Writer(const Settings& settings, RingFile& rings, ClockMap& clock, LineFormatter& lines);

  // The file is created as `fallback_path`, a unique name, and then claims the requested one.
  void set_target(std::string requested_path, std::string fallback_path, Claimant claimant);
  // Puts the opening records where recovery finds them even if the file is never opened.
  void set_prelude(Prelude prelude);
  // What the file of rows says about the process, as JSON without its last brace; when it began.
  void set_row_facts(std::string json, int64_t began_us);
  // Additional arguments for the closing record.
  void set_closing_facts(void (*append)(std::string* args)) { closing_facts_ = append; }
  // False if the file system rejects it; every later write tries again.
  bool ensure_open();
  // The calling thread takes descriptors of its own, and keeps those of the files.
  void take_descriptors();
  // In the child of a fork: the file is the parent's.
  void abandon() {
    file_.close();
    row_file_.close();
  }

  // Writes what the slots contain now. `force`: also what is younger than the flush interval.
  // False while the file system rejects writes.
  bool pump(const std::vector<RingSlot*>& slots, bool force);
  // A line that is in no ring, to be written with what comes next. Dropped, and counted, if there is no room for it.
  void add_line(std::string_view text, uint64_t ts_us);
  // The last records; afterwards the file is complete in itself.
  void finish(const std::vector<RingSlot*>& slots, uint64_t own_cpu_ns);
  // Everything recorded is in the file, including the closing record.
  bool complete() const { return complete_; }
  // The user has been told that the file system rejects writes.
  bool warned() const { return warned_; }
  // Removes the closing records again (exec failed, the program continues).
  void reopen();
  // For the open file; it keeps its name if the new one is not available.
  bool rename_to(const std::string& path);

  bool has_open_tail() const { return file_.is_open() && (spool_used_ > 0 || !sums_.empty()); }
  bool opened() const { return file_.is_open(); }
  const std::string& path() const { return file_.path(); }
  uint64_t bytes() const { return earlier_parts_ + file_size_; }
  uint64_t members() const { return members_; }
  // Of the steps so far; any thread may ask.
  std::optional<RowSums> rows_known() const { return rows_.known(); }
  // Grows while the writer makes progress; any thread may read it.
  uint64_t commits() const { return commits_.load(std::memory_order_relaxed); }
  // The latest events, oldest first, if there is a hang watch to ask for them; by any thread.
  std::vector<std::string> recent();

 private:
  bool drain(const std::vector<RingSlot*>& slots);
  bool take(RingSlot* slot, uint64_t head);
  void take_ids(RingSlot* slot, uint64_t head);
  bool take_calls(RingSlot* slot, uint64_t head, int64_t tid);
  void remember();
  bool take_large(RingSlot* slot, const Record& r, int64_t tid);
  void count_taken(const LineFormatter::Line& line);
  enum class Summed { kNo, kYes, kNoRoom };
  Summed sum_up(const Record& r);
  void append_sums();
  const std::string& names_of_sum(uint32_t name);
  size_t room_for_sums() const { return sums_bound_; }
  void publish_count();
  void see_unwritten(const Record& r, int64_t tid);
  void discard(const std::vector<RingSlot*>& slots);
  void write_rows();
  bool open_row_file();
  bool commit_whole(const std::vector<RingSlot*>& slots);
  bool commit_tail(const std::vector<RingSlot*>& slots);
  void keep_as_tail();
  void empty_spool();
  bool cut_member(const std::vector<RingSlot*>& slots);
  bool commit_bytes(const std::vector<RingSlot*>& slots, uint64_t offset, std::string_view bytes, bool replacing);
  bool write_closing(uint64_t own_cpu_ns, bool last);
  bool rotate();
  bool rotate_if_due();
  bool create_file();
  bool settle_name();
  Claim claim(const std::string& path);
  void remove_oldest_parts();
  void remove_part(size_t at);
  void go_round();
  void keep_detail(const char* reason, const StepRow* row);
  void watch_for_anomaly(const std::vector<StepRow>& rows);
  bool over_limit() const { return settings_.max_size && bytes() >= settings_.max_size; }
  std::string_view encode(std::string_view text, const MemberFacts& facts);
  std::string_view encode_spool(uint64_t from, const MemberFacts& facts);
  void append(std::string_view text, const MemberFacts& facts);
  void append_prelude();
  void state_path();
  void set_commit(uint64_t size, CommitState state);
  void name_thread(RingSlot* slot, int64_t tid);
  void name_files(const Record& r, int64_t tid);
  void name_file(uint64_t hash, int64_t tid);
  uint64_t uncommitted() const { return spool_used_ - tail_committed_; }
  void refused();  // after a failed write: says so, once

  const Settings& settings_;
  RingFile& rings_;
  ClockMap& clock_;
  LineFormatter& lines_;
  Gzip gzip_;
  TraceFile file_;
  FileNames names_;
  Aggregation sums_;
  size_t sums_bound_ = 0;       // at most this much text will they be
  uint64_t sums_since_ns_ = 0;  // when their period began
  uint64_t events_summed_ = 0;  // over all parts
  struct Named {
    std::string name, category, text;
  };
  std::unordered_map<uint32_t, Named> summed_names_;       // of both kinds
  std::unordered_map<std::string, uint32_t> event_names_;  // names that are in the records themselves
  RowMaker rows_;
  TraceFile row_file_;
  uint64_t row_file_size_ = 0;
  std::string row_facts_, unwritten_rows_;
  std::string requested_path_, fallback_path_;
  std::string stem_, fallback_stem_;  // of the first part's names
  Claimant claimant_;
  bool named_ = false;  // the requested name is ours, or known not to be
  struct EarlierFile {
    std::string path;
    FileId file;
    uint64_t size;
    bool kept;  // it contains an anomaly
  };
  std::vector<EarlierFile> earlier_files_;
  BlackBox black_box_;
  bool keep_part_ = false, keep_next_part_ = false;
  int triggered_part_ = 0;  // a trigger is noted once in each part
  Prelude prelude_;
  void (*closing_facts_)(std::string*) = nullptr;
  std::vector<RingSlot*> slots_;
  std::vector<uint64_t> heads_;
  std::atomic<uint64_t> commits_{0};

  static constexpr size_t kRecent = 50;
  std::mutex recent_mutex_;
  std::vector<std::string> recent_;
  size_t oldest_ = 0;        // of a full `recent_`
  uint64_t remembered_ = 0;  // up to here in the spool

  uint64_t file_size_ = 0;
  uint64_t earlier_parts_ = 0;
  int part_ = 1;
  unsigned path_slot_ = 0;  // of the header's two paths, the one in use
  uint64_t members_ = 0;
  uint64_t records_in_file_ = 0;
  uint64_t taken_in_part_ = 0;  // of them, those of the rings
  uint64_t events_taken_ = 0;   // and not yet counted in the header
  uint64_t size_before_closing_ = 0;

  uint64_t spool_used_ = 0;      // text in the spool
  LikeLines hints_;              // what is known of its lines
  uint64_t tail_committed_ = 0;  // of it, what is no longer in any ring: in the file from tail_offset on, unless...
  bool rewriting_ = false;       // ...only the spool has it yet
  MemberFacts tail_facts_, new_facts_;
  uint64_t tail_since_ns_ = 0;  // when the open tail began
  uint64_t last_commit_ns_ = 0;
  bool failing_ = false;
  bool complete_ = false;
  bool warned_ = false;
  bool closing_ = false;    // the closing lines must not start another part
  bool last_part_ = false;  // nor must anything else, once the end is reached
};

}  // namespace dft
