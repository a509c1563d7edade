#include "write/row_maker.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>

#include "format/io_calls.hpp"
#include "record/progress.hpp"
#include "write/line.hpp"

namespace dft {
namespace {

constexpr size_t kMaxEvents = 1 << 16;  // of a thread, waiting for the end of its step
constexpr size_t kMaxKept = 1 << 17;    // of all threads together: 4 MiB
constexpr size_t kMaxKinds = 4096;
constexpr size_t kMaxThreads = 256;
constexpr size_t kMaxMarks = 1 << 14;
constexpr int64_t kGapUs = 1000;  // between steps: less is not worth a row

constexpr size_t kListeners = 8;
std::atomic<RowListener> g_listeners[kListeners];

constexpr uint8_t stage(EventClass cls) { return uint8_t(cls); }

bool is_compute(EventClass cls) {
  return cls == EventClass::kForward || cls == EventClass::kBackward || cls == EventClass::kOptimizer ||
         cls == EventClass::kUpdate || cls == EventClass::kAnyCompute;
}

// The number of `key` in `,"key":3,...`, or of `"key":"3"`.
int64_t number_in(std::string_view args, std::string_view key, int64_t otherwise) {
  size_t at = args.find(key);
  if (at == args.npos) return otherwise;
  at += key.size();
  if (at < args.size() && args[at] == '"') ++at;
  bool negative = at < args.size() && args[at] == '-';
  at += negative;
  int64_t out = 0;
  size_t digits = 0;
  for (; at < args.size() && args[at] >= '0' && args[at] <= '9' && digits < 18; ++at, ++digits)
    out = out * 10 + (args[at] - '0');
  return digits == 0 ? otherwise : negative ? -out : out;
}

// What a training program does again and again, as opposed to what its other threads may do.
bool is_movement(EventKind kind) {
  return (kind.mark != Mark::kNone && kind.mark != Mark::kOptimizer) || kind.cls == EventClass::kComm ||
         kind.cls == EventClass::kCheckpoint;
}

bool has(std::string_view args, std::string_view text) { return args.find(text) != args.npos; }

// What the rows need to know of a call, so that no key is compared for each event.
struct CallFacts {
  int8_t size = -1, count = -1;  // which of its values
  bool items = false;            // it returns a number of items of that size
  bool opens = false;            // its first value are the flags
};

constexpr auto kCallFacts = [] {
  std::array<CallFacts, std::size(kCalls)> all{};
  for (size_t call = 0; call < all.size(); ++call) {
    CallFacts& facts = all[call];
    for (int8_t i = 0; i < 4 && kCalls[call].keys[i]; ++i) {
      std::string_view key = kCalls[call].keys[i];
      if (key == "size" && facts.size < 0) facts.size = i;
      if (key == "count" && facts.count < 0) facts.count = i;
    }
    facts.items = Call(call) == Call::fread_ || Call(call) == Call::fwrite_;
    facts.opens = kCalls[call].keys[0] && (Call(call) == Call::open_ || Call(call) == Call::openat_ ||
                                           Call(call) == Call::fopen_ || Call(call) == Call::freopen_);
  }
  return all;
}();

// What a call moved: what it returned, otherwise what it was asked for.
int64_t bytes_moved(const Record& r, int8_t direction) {
  IoPayload io;
  memcpy(&io, r.payload(), sizeof io);
  if (io.call >= std::size(kCalls)) return 0;
  const CallFacts& facts = kCallFacts[io.call];
  auto value = [&](int8_t i) -> int64_t {
    if (i < 0 || i >= int8_t(io.values)) return -1;
    int64_t v;
    memcpy(&v, r.payload() + sizeof io + size_t(i) * sizeof v, sizeof v);
    return v;
  };
  if (io.has_ret && !facts.items) return std::max<int64_t>(io.ret, 0) * direction;
  int64_t size = value(facts.size), count = value(facts.count);
  int64_t moved = io.has_ret ? io.ret : size >= 0 ? size : count;
  if (facts.items && io.has_ret && io.ret > 0 && size > 0 && count > 0) moved = io.ret * size;
  return std::max<int64_t>(moved, 0) * direction;
}

bool opens_to_write(const Record& r) {
  IoPayload io;
  memcpy(&io, r.payload(), sizeof io);
  if (io.call >= std::size(kCalls) || io.values == 0 || !kCallFacts[io.call].opens) return false;
  int64_t flags;
  memcpy(&flags, r.payload() + sizeof io, sizeof flags);
  int64_t mode = flags & O_ACCMODE;
  return mode == O_WRONLY || (mode == O_RDWR && (flags & (O_CREAT | O_TRUNC)));
}

template <typename Spans>
void join(Spans& spans) {
  std::sort(spans.begin(), spans.end());
  size_t out = 0;
  for (const auto& span : spans) {
    if (span.second <= span.first) continue;
    if (out && span.first <= spans[out - 1].second) {
      spans[out - 1].second = std::max(spans[out - 1].second, span.second);
    } else {
      spans[out++] = span;
    }
  }
  spans.resize(out);
}

// Calls f(from, to, stage) for each piece of a segment inside a window.
template <typename F>
void pieces(const Segments& s, int64_t from, int64_t to, F f) {
  size_t i = size_t(std::upper_bound(s.to.begin(), s.to.end(), from) - s.to.begin());
  for (; i < s.from.size() && s.from[i] < to; ++i) f(std::max(from, s.from[i]), std::min(to, s.to[i]), s.stage[i]);
}

bool any_in(const std::vector<int64_t>& sorted, int64_t from, int64_t to) {
  auto at = std::lower_bound(sorted.begin(), sorted.end(), from);
  return at != sorted.end() && *at < to;
}

template <typename T>
void forget_before(std::vector<T>& times, int64_t t) {
  times.erase(std::remove_if(times.begin(), times.end(), [&](const T& each) { return each < t; }), times.end());
}

}  // namespace

void add_row_listener(RowListener listener) {
  for (auto& slot : g_listeners) {
    RowListener none = nullptr;
    if (slot.load() == listener || slot.compare_exchange_strong(none, listener)) return;
  }
}

void RowMaker::begin(NameLookup names, int64_t began_us) {
  names_ = names;
  began_us_ = began_us;
}

EventKind RowMaker::kind_of(const Record& r, std::string_view payload) {
  if (r.kind == Kind::kSpan || r.kind == Kind::kIo) {
    if (r.name >= by_number_.size()) by_number_.resize(r.name + 1);
    auto& known = by_number_[r.name];
    if (!known) {
      auto [name, category] = names_(r.name);
      known = kind_of_event(category, name);
    }
    return *known;
  }
  Strings s;
  memcpy(&s, payload.data(), sizeof s);
  std::string_view both = payload.substr(sizeof s, size_t(s.first_size) + s.second_size);
  key_.assign(both);
  key_ += char(s.first_size);
  auto at = by_text_.find(key_);
  if (at != by_text_.end()) return at->second;
  if (by_text_.size() >= kMaxKinds) by_text_.clear();
  EventKind kind = kind_of_event(both.substr(s.first_size), both.substr(0, s.first_size));
  by_text_.emplace(key_, kind);
  return kind;
}

RowMaker::Thread& RowMaker::thread(int64_t tid) {
  if (latest_ < threads_.size() && threads_[latest_].tid == tid) return threads_[latest_];
  for (latest_ = 0; latest_ < threads_.size(); ++latest_)
    if (threads_[latest_].tid == tid) return threads_[latest_];
  if (threads_.size() >= kMaxThreads) {  // of many short ones the first is the oldest
    auto idle = std::find_if(threads_.begin(), threads_.end(), [](const Thread& t) { return t.number < 0; });
    if (idle != threads_.end()) {
      kept_ -= idle->events.size();
      threads_.erase(idle);
    }
  }
  latest_ = threads_.size();
  threads_.emplace_back();
  threads_.back().tid = tid;
  return threads_.back();
}

void RowMaker::Events::append(const Event* events, size_t n) {
  while (n) {
    size_t at = first_ + size_, some = std::min(n, kPiece - at % kPiece);
    if (at / kPiece == pieces_.size()) pieces_.push_back(std::make_unique_for_overwrite<Event[]>(kPiece));
    std::copy_n(events, some, &pieces_[at / kPiece][at % kPiece]);
    size_ += some;
    events += some;
    n -= some;
  }
}

void RowMaker::Events::drop_front(size_t n) {
  first_ += n;
  size_ -= n;
  std::rotate(pieces_.begin(), pieces_.begin() + ptrdiff_t(first_ / kPiece), pieces_.end());
  first_ %= kPiece;
}

void RowMaker::Events::trim(size_t spare) {
  size_t used = (first_ + size_ + kPiece - 1) / kPiece;
  if (pieces_.size() > used + spare) pieces_.resize(used + spare);
}

void RowMaker::keep(Thread& t, const Event& event) {
  if (t.events.size() >= kMaxEvents) drop_half(t);
  if (kept_ >= kMaxKept) {
    for (Thread& each : threads_) {
      drop_half(each);
      each.events.trim(0);  // a thread that goes on alone soon needs its memory again, many need it in turns
    }
  }
  t.events.append(&event, 1);
  ++kept_;
}

// Drops the older half: a process without steps never needs it.
void RowMaker::drop_half(Thread& t) {
  size_t gone = (t.events.size() + 1) / 2;
  t.events.drop_front(gone);
  t.cut |= gone > 0;
  kept_ -= gone;
}

inline bool RowMaker::plain_event(const WrittenCall& call, Event* event) const {
  const Record& r = *call.record;
  if (r.name >= plain_calls_.size() || (r.flags & kOtherLane)) return false;
  PlainCall kind = plain_calls_[r.name];
  if (!kind.plain) return false;
  if (kind.opens && opens_to_write(r)) kind.cls = EventClass::kIoWrite;
  auto start = int64_t(call.ts);
  *event = {start, start + int64_t(call.dur), kind.moves ? bytes_moved(r, kind.moves) : 0, kind.cls, 0};
  return true;
}

// Nearly all calls of a program that does I/O are known by name, and follow another one of their thread.
void RowMaker::see_calls(std::span<const WrittenCall> calls, int64_t tid) noexcept {
  Event events[LineFormatter::kMaxCalls];
  bool by_records = g_progress.by_records.load(std::memory_order_relaxed);
  while (!calls.empty()) {
    Thread* t = latest_ < threads_.size() && threads_[latest_].tid == tid ? &threads_[latest_] : nullptr;
    size_t n = 0;
    if (t && !by_records && t->events.size() + calls.size() <= kMaxEvents && kept_ + calls.size() <= kMaxKept) {
      while (n < calls.size() && plain_event(calls[n], &events[n])) ++n;
      if (keep_all(*t, events, n)) calls = calls.subspan(n);
      if (calls.empty()) return;
    }
    see(*calls[0].record, tid, calls[0].ts, calls[0].dur);
    calls = calls.subspan(1);
  }
}

// Without memory a row is less exact; the trace is not affected.
bool RowMaker::keep_all(Thread& t, const Event* events, size_t n) noexcept {
  size_t before = t.events.size();
  bool all = true;
  try {
    t.events.append(events, n);
  } catch (const std::bad_alloc&) {
    all = false;
    t.events.drop_back(t.events.size() - before);
  }
  kept_ += t.events.size() - before;
  return all;
}

// For plain_event(): so that it asks nothing about the kind of an event again.
void RowMaker::note_call(const Record& r, EventKind kind) {
  if (r.name >= plain_calls_.size()) plain_calls_.resize(r.name + 1);
  IoPayload io;
  memcpy(&io, r.payload(), sizeof io);
  bool plain = kind.mark == Mark::kNone && kind.cls != EventClass::kSkip && !is_compute(kind.cls);
  bool opens = io.call >= std::size(kCalls) || kCallFacts[io.call].opens;
  plain_calls_[r.name] = {plain, opens, kind.cls, kind.moves};
}

// Without memory a row is less exact; the trace is not affected.
void RowMaker::see(const Record& r, int64_t tid, uint64_t ts_us, uint64_t dur_us) noexcept {
  if (r.kind == Kind::kMetadata || r.kind == Kind::kCounter || !names_) return;
  try {
    note(r, tid, ts_us, dur_us);
  } catch (const std::bad_alloc&) {
    for (Thread& t : threads_) t.cut = true;
  }
}

void RowMaker::note(const Record& r, int64_t tid, uint64_t ts_us, uint64_t dur_us) {
  std::string_view payload = payload_of(r);
  EventKind kind = kind_of(r, payload);
  if (r.kind == Kind::kIo) note_call(r, kind);
  auto start = int64_t(ts_us), end = int64_t(ts_us + dur_us);
  auto args = [&] {
    if (r.kind == Kind::kSpan) return payload;
    Strings s;
    memcpy(&s, payload.data(), sizeof s);
    return payload.substr(sizeof s + s.first_size + s.second_size);
  };
  if (kind.mark == Mark::kDevicePhase) {
    device_us_ += int64_t(dur_us);
    device_seen_ = true;
  } else if (kind.mark == Mark::kOptimizer && late_rank_.empty()) {
    int64_t rank = number_in(args(), "\"rank\":", -1), size = number_in(args(), "\"world_size\":", -1);
    if (rank >= 0) late_rank_ = ",\"rank\":" + std::to_string(rank);
    if (rank >= 0 && size > 0) late_rank_ += ",\"world_size\":" + std::to_string(size);
  }
  if (kind.cls == EventClass::kSkip || (r.flags & kOtherLane)) return;
  if (g_progress.by_records.load(std::memory_order_relaxed) && is_movement(kind)) record_moved(1000 * end);
  Thread& t = thread(tid);
  int64_t bytes = 0;
  if (r.kind == Kind::kIo) {
    if (kind.moves) bytes = bytes_moved(r, kind.moves);
    if (opens_to_write(r)) kind.cls = EventClass::kIoWrite;
  }
  // A loader with workers says how many samples a batch has; without them, each is made here.
  int64_t samples = kind.mark == Mark::kItem ? 1 : kind.mark == Mark::kWait ? number_in(args(), "\"samples\":", 0) : 0;
  keep(t, {start, end, bytes, kind.cls, uint32_t(std::clamp<int64_t>(samples, 0, UINT32_MAX))});
  t.computes |= is_compute(kind.cls);
  switch (kind.mark) {
    case Mark::kWait:
      t.automatic |= has(args(), "\"auto\":1");
      if (t.waits.size() >= kMaxMarks) t.waits.erase(t.waits.begin(), t.waits.begin() + kMaxMarks / 2);
      t.waits.push_back({start, false});
      break;
    case Mark::kBody: see_body(t, r, args(), start, end); break;
    case Mark::kForward: parts_named_ = true; break;
    case Mark::kLearn:
      parts_named_ = true;
      if (learns_.size() >= kMaxMarks) learns_.erase(learns_.begin(), learns_.begin() + kMaxMarks / 2);
      learns_.push_back(start);
      break;
    case Mark::kUpdate: see_update(t, start, end, args()); break;
    case Mark::kEvaluate:
      if (evaluations_.size() < kMaxMarks) evaluations_.emplace_back(start, end);
      break;
    case Mark::kCompile:
      if (t.compile.size() < kMaxMarks) t.compile.emplace_back(start, end);
      break;
    case Mark::kRestore:
      if (t.restores.size() < kMaxMarks) t.restores.push_back(start);
      break;
    default: break;
  }
}

void RowMaker::see_body(Thread& t, const Record& r, std::string_view args, int64_t start, int64_t end) {
  Body body{start,
            end,
            number_in(args, "\"step\":", -1),
            number_in(args, "\"epoch\":", -1),
            number_in(args, "\"count\":", -1),
            0,
            r.level};
  if (has(args, "\"auto\":1")) {
    t.automatic = true;
    body.flags = kRowAutomatic;
    if (has(args, "\"forward_unseen\":1")) body.flags |= kRowForwardUnseen;
    if (has(args, "\"inference\":1")) body.flags |= kRowInference;
  } else if (r.level > t.outer_level) {  // a loop inside a step
    if (t.inner.size() < kMaxMarks) t.inner.emplace_back(start, end);
    return;
  } else {
    t.outer_level = r.level;
  }
  if (t.bodies.size() < kMaxEvents) t.bodies.push_back(body);
}

// Without a loader, an annotated step lasts from one `compute.step` to the next.
void RowMaker::see_update(Thread& t, int64_t start, int64_t end, std::string_view args) {
  if (updates_.size() >= kMaxMarks) updates_.erase(updates_.begin(), updates_.begin() + kMaxMarks / 2);
  updates_.push_back(start);
  updating_us_ += end - start;
  t.automatic |= has(args, "\"auto\":1");
  if (t.last_update && t.waits.empty() && !t.rows && !t.automatic && t.bodies.size() < kMaxEvents)
    t.bodies.push_back({t.last_update, end, number_in(args, "\"step\":", -1), number_in(args, "\"epoch\":", -1), -1,
                        kRowByUpdates, 0});
  t.last_update = end;
}

Segments RowMaker::segments_of(const Thread& t) const {
  std::vector<int64_t> ts, dur;
  std::vector<uint8_t> cls;
  ts.reserve(t.events.size());
  dur.reserve(t.events.size());
  cls.reserve(t.events.size());
  // `compute.step` is the optimizer, unless it surrounds whole steps and nothing names their parts.
  bool whole = !parts_named_ && bodies_us_ > 0 && 2 * updating_us_ > bodies_us_;
  t.events.for_each([&](const Event& e) {
    ts.push_back(e.start);
    dur.push_back(e.end - e.start);
    EventClass of = whole && e.cls == EventClass::kUpdate ? EventClass::kAnyCompute : e.cls;
    cls.push_back(uint8_t(of));
  });
  return timeline(ts.data(), dur.data(), cls.data(), ts.size(), stage_rules(t.automatic), kRowStageCount, kNoStage);
}

// What other threads do explains time that this one cannot: see analyze/map/threads.py.
Segments RowMaker::overlaid(const Thread& t, Segments main) const {
  using C = EventClass;
  static constexpr C kOrder[] = {C::kForward,    C::kBackward, C::kOptimizer,  C::kComm, C::kTransfer,
                                 C::kCheckpoint, C::kCollate,  C::kPreprocess, C::kRead};
  Spans fills[std::size(kOrder)];
  bool any = false;
  for (const Thread& other : threads_) {
    if (&other == &t || other.events.empty() || (t.automatic && !other.computes)) continue;
    Segments theirs = segments_of(other);
    for (size_t i = 0; i < theirs.from.size(); ++i) {
      const C* at = std::find(std::begin(kOrder), std::end(kOrder), C(theirs.stage[i]));
      if (at == std::end(kOrder)) continue;
      fills[at - kOrder].emplace_back(theirs.from[i], theirs.to[i]);
      any = true;
    }
  }
  if (!any) return main;
  std::vector<int64_t> edges(main.from);
  edges.insert(edges.end(), main.to.begin(), main.to.end());
  for (Spans& fill : fills) {
    join(fill);
    for (auto& [from, to] : fill) edges.insert(edges.end(), {from, to});
  }
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  Segments out;
  size_t mine = 0, place[std::size(kOrder)] = {};
  for (size_t i = 0; i + 1 < edges.size(); ++i) {
    int64_t left = edges[i], right = edges[i + 1];
    while (mine < main.to.size() && main.to[mine] <= left) ++mine;
    bool inside = mine < main.from.size() && main.from[mine] <= left;
    uint8_t piece = inside ? main.stage[mine] : kNoStage;
    bool taken = false;
    for (size_t f = 0; f < std::size(kOrder) && !taken; ++f) {
      while (place[f] < fills[f].size() && fills[f][place[f]].second <= left) ++place[f];
      bool there = place[f] < fills[f].size() && fills[f][place[f]].first <= left;
      bool over = (piece == kNoStage && !t.automatic) || (piece == stage(C::kFetchWait) && is_compute(kOrder[f]));
      if (!there || !over) continue;
      piece = stage(kOrder[f]);
      taken = true;
    }
    if (!inside && !taken) continue;
    out.from.push_back(left);
    out.to.push_back(right);
    out.stage.push_back(piece);
  }
  return out;
}

// Evaluation and compilation are no part of the step they happen in.
RowMaker::Spans RowMaker::aside_of(const Thread& t, int64_t from, int64_t to) const {
  Spans out;
  for (const Spans* spans : {&evaluations_, &t.compile})
    for (auto [a, b] : *spans)
      if (a < to && b > from) out.emplace_back(std::max(a, from), std::min(b, to));
  Spans loop;
  for (auto [a, b] : t.inner)
    if (a >= from && b <= to) loop.emplace_back(a, b);
  if (!loop.empty()) {
    int64_t first = loop.front().first, last = loop.back().second;
    // The waits of its batches belong to it.
    for (const Wait& wait : t.waits)
      if (wait.start > from && wait.start < first) {
        first = wait.start;
        break;
      }
    if (!any_in(learns_, first, last) && !any_in(updates_, first, last)) out.emplace_back(first, last);
  }
  join(out);
  return out;
}

RowMaker::Seen RowMaker::seen_by(const Thread& t) const {
  Seen out{overlaid(t, segments_of(t)), {}};
  for (const Thread& each : threads_)
    each.events.for_each([&](const Event& e) {
      if (e.bytes || e.samples) out.moved.push_back({e.start, e.bytes, e.samples});
    });
  std::sort(out.moved.begin(), out.moved.end(), [](const Moved& a, const Moved& b) { return a.start < b.start; });
  return out;
}

StepRow RowMaker::row_of(const Thread& t, const Seen& seen, int64_t from, int64_t to, bool automatic) const {
  StepRow row;
  row.start_us = from;
  auto count = [&](int64_t a, int64_t b) {
    pieces(seen.segments, a, b, [&](int64_t x, int64_t y, uint8_t of) { row.stage_us[of] += y - x; });
  };
  int64_t at = from;
  const Spans aside = aside_of(t, from, to);
  for (auto [a, b] : aside) {
    count(at, a);
    row.evaluation_us += b - a;
    at = b;
  }
  count(at, to);
  row.wall_us = to - from - row.evaluation_us;
  row.stage_us[kNoStage] = 0;
  int64_t known = 0;
  for (int64_t us : row.stage_us) known += us;
  row.stage_us[automatic ? stage(EventClass::kOwnCode) : kNoStage] += row.wall_us - known;
  auto before = [](const Moved& moved, int64_t time) { return moved.start < time; };
  auto first = std::lower_bound(seen.moved.begin(), seen.moved.end(), from, before);
  auto last = std::lower_bound(first, seen.moved.end(), to, before);
  for (; first != last; ++first) {
    (first->bytes > 0 ? row.read_bytes : row.written_bytes) += std::abs(first->bytes);
    bool evaluated = std::any_of(aside.begin(), aside.end(), [&](const auto& span) {
      return span.first <= first->start && first->start < span.second;
    });
    if (!evaluated) row.samples += first->samples;
  }
  if (t.cut) row.flags |= kRowCut;
  if (std::any_of(t.restores.begin(), t.restores.end(), [&](int64_t at) { return at >= from && at < to; }))
    row.flags |= kRowRestores;
  return row;
}

void RowMaker::add_between(const Thread& t, const Seen& seen, int64_t from, int64_t to, bool automatic) {
  if (to - from < kGapUs) return;
  StepRow row = row_of(t, seen, from, to, automatic);
  row.flags |= kRowBetween | t.number * kRowThread | (automatic ? int64_t(kRowAutomatic) : 0);
  rows_.push_back(row);
}

void RowMaker::add_step(Thread& t, const Body& body, const Seen& seen) {
  int64_t start = body.start;
  // A wait belongs to one body only; another's batch was in hand already.
  auto after = std::upper_bound(t.waits.begin(), t.waits.end(), body.start,
                                [](int64_t at, const Wait& wait) { return at < wait.start; });
  if (after != t.waits.begin() && !(body.flags & kRowByUpdates)) {
    Wait& wait = *(after - 1);
    if (!wait.used) start = wait.start;
    wait.used = true;
    t.waits.erase(t.waits.begin(), after - 1);
  }
  bool automatic = body.flags & kRowAutomatic;
  if (t.last_end) start = std::max(start, t.last_end);
  if (body.end < start) return;
  bodies_us_ += body.end - body.start;
  if (t.number < 0) t.number = threads_with_steps_++;
  add_between(t, seen, t.last_end ? t.last_end : t.number == 0 ? began_us_ : start, start, automatic);
  StepRow row = row_of(t, seen, start, body.end, automatic);
  row.step = body.step;
  row.epoch = body.epoch;
  row.flags |= body.flags | t.number * kRowThread;
  if (any_in(learns_, start, body.end) || any_in(updates_, start, body.end)) row.flags |= kRowLearns;
  if (body.count >= 0 && body.count <= t.last_count) row.flags |= kRowLoopBegins;
  t.last_count = std::max<int64_t>(body.count, 0);
  if (device_seen_) row.flags |= kRowDevice;
  row.device_busy_us = std::exchange(device_us_, 0);
  t.last_end = body.end;
  ++t.rows;
  rows_.push_back(row);
  publish(row);
}

void RowMaker::settle(Thread& t) {
  std::sort(learns_.begin(), learns_.end());
  std::sort(updates_.begin(), updates_.end());
  std::stable_sort(t.waits.begin(), t.waits.end(), [](const Wait& a, const Wait& b) { return a.start < b.start; });
  std::stable_sort(t.bodies.begin(), t.bodies.end(), [](const Body& a, const Body& b) { return a.start < b.start; });
  Seen seen = seen_by(t);
  for (const Body& body : t.bodies) add_step(t, body, seen);
  t.bodies.clear();
  forget(t);
}

// What lies before the end of the latest row is no longer needed, not in other threads either.
void RowMaker::forget(Thread& t) {
  auto over = [&](const auto& span) { return span.second <= t.last_end; };
  bool longest = true;
  for (const Thread& other : threads_) longest &= other.rows <= t.rows;
  for (Thread& each : threads_) {
    if (&each != &t && (each.number >= 0 || !longest)) continue;
    // What began at the very end belongs to the next row, however short it was.
    auto gone = [&](const Event& e) { return e.end <= t.last_end && e.start < t.last_end; };
    size_t before = each.events.size();
    constexpr size_t kSpare = 4;
    each.events.remove_if(gone);
    each.events.trim(kSpare);
    kept_ -= before - each.events.size();
    each.cut = false;
  }
  t.compile.erase(std::remove_if(t.compile.begin(), t.compile.end(), over), t.compile.end());
  t.inner.erase(std::remove_if(t.inner.begin(), t.inner.end(), over), t.inner.end());
  forget_before(t.restores, t.last_end);
  if (!longest) return;
  evaluations_.erase(std::remove_if(evaluations_.begin(), evaluations_.end(), over), evaluations_.end());
  forget_before(learns_, t.last_end);
  forget_before(updates_, t.last_end);
}

void RowMaker::settle() {
  for (Thread& t : threads_)
    if (!t.bodies.empty()) settle(t);
}

void RowMaker::finish(int64_t now_us) {
  settle();
  auto longest = std::max_element(threads_.begin(), threads_.end(),
                                  [](const Thread& a, const Thread& b) { return a.rows < b.rows; });
  if (longest == threads_.end() || !longest->rows) return;
  add_between(*longest, seen_by(*longest), longest->last_end, now_us, longest->automatic);
  longest->last_end = std::max(longest->last_end, now_us);
}

void RowMaker::publish(const StepRow& row) {
  int64_t number = g_progress.steps.fetch_add(1, std::memory_order_relaxed);
  g_progress.step.store(row.step >= 0 ? row.step : number, std::memory_order_relaxed);
  {
    std::lock_guard lock(known_mutex_);
    known_.last = row;
    ++known_.steps;
    StepRow& sums = known_.sums;
    sums.wall_us += row.wall_us;
    for (size_t i = 0; i < kRowStageCount; ++i) sums.stage_us[i] += row.stage_us[i];
    sums.evaluation_us += row.evaluation_us;
    sums.device_busy_us += row.device_busy_us;
    sums.read_bytes += row.read_bytes;
    sums.written_bytes += row.written_bytes;
    sums.samples += row.samples;
    sums.flags |= row.flags;
  }
  for (auto& slot : g_listeners)
    if (RowListener listener = slot.load()) listener(row);
}

std::optional<RowSums> RowMaker::known() const {
  std::lock_guard lock(known_mutex_);
  if (!known_.steps) return std::nullopt;
  return known_;
}

}  // namespace dft
