// Step rows from the records that the writer takes out of the rings, as the report makes its ledger from the trace.
//
// The threads of the program pay nothing for it. Rows are made when everything that was in the rings has been seen: a
// step is known once the end of its body is.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "api.hpp"
#include "format/stage.hpp"
#include "format/step_row.hpp"
#include "format/timeline.hpp"
#include "record/record.hpp"
#include "write/line.hpp"

namespace dft {

// What is known of the steps so far; any thread may ask.
struct RowSums {
  StepRow last;
  StepRow sums;  // of all steps: times, bytes and samples
  uint64_t steps = 0;
};

// Told of each step by the writer's thread, soon after its end.
using RowListener = void (*)(const StepRow& row);
DFT_API void add_row_listener(RowListener listener);

class RowMaker {
 public:
  using NameLookup = std::pair<std::string, std::string> (*)(uint32_t);
  // `began_us`: when the process began, as far as its trace knows.
  void begin(NameLookup names, int64_t began_us);

  void see(const Record& r, int64_t tid, uint64_t ts_us, uint64_t dur_us) noexcept;
  // The same for calls of one thread, not more than LineFormatter::kMaxCalls.
  void see_calls(std::span<const WrittenCall> calls, int64_t tid) noexcept;
  // Makes the rows of all steps whose end has been seen.
  void settle();
  // The recording ends: what came after the last step.
  void finish(int64_t now_us);

  // The rows since the last call; between steps there may be rows of their own.
  std::vector<StepRow> take() { return std::exchange(rows_, {}); }
  // The rank and the size of the job, if an event gave them later than the environment: JSON, `,"rank":1`.
  std::string take_late_rank() { return std::exchange(late_rank_, {}); }
  std::optional<RowSums> known() const;

 private:
  struct Event {
    int64_t start, end;
    int64_t bytes;  // read; negative: written
    EventClass cls;
    uint32_t samples;
  };
  // In pieces of one size: what has to grow, or loses its older half, is never copied.
  class Events {
   public:
    size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }
    void append(const Event* events, size_t n);
    void drop_front(size_t n);
    void drop_back(size_t n) { size_ -= n; }
    // Frees unused memory, all but `spare` pieces.
    void trim(size_t spare);
    template <typename F>
    void for_each(F f) const {
      for (size_t i = first_; i < first_ + size_; ++i) f(std::as_const(pieces_[i / kPiece][i % kPiece]));
    }
    template <typename F>
    void remove_if(F gone) {
      size_t kept = first_;
      for (size_t i = first_; i < first_ + size_; ++i) {
        const Event& event = pieces_[i / kPiece][i % kPiece];
        if (gone(event)) continue;
        pieces_[kept / kPiece][kept % kPiece] = event;
        ++kept;
      }
      size_ = kept - first_;
    }

   private:
    static constexpr size_t kPiece = 1024;
    std::vector<std::unique_ptr<Event[]>> pieces_;  // those behind the last event are spare
    size_t first_ = 0, size_ = 0;
  };
  struct Wait {
    int64_t start;
    bool used;
  };
  struct Body {
    int64_t start, end, step, epoch, count, flags;
    uint16_t level;
  };
  struct Thread {
    int64_t tid = 0;
    Events events;
    std::vector<Wait> waits;
    std::vector<Body> bodies;
    std::vector<std::pair<int64_t, int64_t>> compile, inner;  // inner: loops inside a step
    std::vector<int64_t> restores;                            // when checkpoints began to be restored
    uint16_t outer_level = UINT16_MAX;                        // of annotated bodies
    int64_t number = -1;                                      // of the threads with steps
    int64_t last_end = 0, last_count = 0, rows = 0;
    int64_t last_update = 0;  // the end of the latest `compute.step`
    bool cut = false;         // some of its events are gone
    bool computes = false;    // it has events of forward, backward or the optimizer
    bool automatic = false;
  };
  using Spans = std::vector<std::pair<int64_t, int64_t>>;
  struct Moved {
    int64_t start, bytes;
    uint32_t samples;
  };
  struct Seen {
    Segments segments;         // of one thread
    std::vector<Moved> moved;  // by all of them
  };

  void note(const Record& r, int64_t tid, uint64_t ts_us, uint64_t dur_us);
  void note_call(const Record& r, EventKind kind);
  bool plain_event(const WrittenCall& call, Event* event) const;
  EventKind kind_of(const Record& r, std::string_view payload);
  Thread& thread(int64_t tid);
  void keep(Thread& t, const Event& event);
  bool keep_all(Thread& t, const Event* events, size_t n) noexcept;
  void drop_half(Thread& t);
  void see_body(Thread& t, const Record& r, std::string_view args, int64_t start, int64_t end);
  void see_update(Thread& t, int64_t start, int64_t end, std::string_view args);
  void settle(Thread& t);
  Segments segments_of(const Thread& t) const;
  Segments overlaid(const Thread& t, Segments main) const;
  Seen seen_by(const Thread& t) const;
  StepRow row_of(const Thread& t, const Seen& seen, int64_t from, int64_t to, bool automatic) const;
  void add_step(Thread& t, const Body& body, const Seen& seen);
  void add_between(const Thread& t, const Seen& seen, int64_t from, int64_t to, bool automatic);
  Spans aside_of(const Thread& t, int64_t from, int64_t to) const;
  void forget(Thread& t);
  void publish(const StepRow& row);

  NameLookup names_ = nullptr;
  int64_t began_us_ = 0;
  std::vector<std::optional<EventKind>> by_number_;
  // Nothing but a call: no mark, no part of a step.
  struct PlainCall {
    bool plain = false, opens = false;
    EventClass cls{};
    int8_t moves = 0;
  };
  std::vector<PlainCall> plain_calls_;  // by the number of the name
  std::unordered_map<std::string, EventKind> by_text_;
  std::string key_;
  std::vector<Thread> threads_;
  size_t latest_ = 0;  // of them, the one asked for last
  size_t kept_ = 0;    // events of all of them
  Spans evaluations_;
  std::vector<int64_t> learns_, updates_;  // when backward passes and `compute.step` began, in any thread
  int64_t device_us_ = 0;
  bool device_seen_ = false;
  int64_t threads_with_steps_ = 0;
  bool parts_named_ = false;                 // forward or backward are annotated
  int64_t updating_us_ = 0, bodies_us_ = 0;  // how much of the bodies `compute.step` covers
  std::vector<StepRow> rows_;
  std::string late_rank_;
  mutable std::mutex known_mutex_;
  RowSums known_;
};

}  // namespace dft
