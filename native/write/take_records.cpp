// The writer's way from the rings to the spool.
#include <algorithm>
#include <bit>
#include <new>
#include <tuple>

#include "format/arguments.hpp"
#include "format/envelope.hpp"
#include "format/io_calls.hpp"
#include "record/large_payloads.hpp"
#include "record/warn_once.hpp"
#include "write/writer.hpp"

namespace dft {
namespace {

constexpr uint64_t kCutSize = 256 * 1024;  // enough text for a member of its own
constexpr uint64_t kTailAge = 1000000000;  // small members are joined after a second
constexpr uint64_t kMillisecond = 1000000;

void release_payload(const Record& r) {
  if (!(r.flags & kOnHeap)) return;
  std::string_view payload = payload_of(r);
  release_large_payload(const_cast<char*>(payload.data()), payload.size());
}

}  // namespace

bool Writer::take_large(RingSlot* slot, const Record& r, int64_t tid) {
  // Larger than the spool: a separate member, straight from the heap. A new part has to write its first lines.
  if (!cut_member(slots_) || !cut_member(slots_) || spool_used_ > 0) return false;
  LineFormatter::Line line;
  std::string text;
  std::string_view encoded;
  try {
    text.resize(lines_.bound(r));
    lines_.begin_text();
    char* end = lines_.write(r, tid, clock_, text.data(), &line);
    lines_.begin_text();
    text.resize(size_t(end - text.data()));
    MemberFacts facts;
    facts.count(line.ts);
    encoded = encode(text, facts);
  } catch (const std::bad_alloc&) {
    rings_.header()->dropped[int(Drop::kMemory)].fetch_add(1, std::memory_order_relaxed);
    slot->read += r.size;
    release_payload(r);
    return true;
  }
  // Once committed, the record's space belongs to the producer again.
  Record head = r;
  char payload[sizeof(HeapPayload)];
  bool on_heap = r.flags & kOnHeap;
  if (on_heap) memcpy(payload, r.payload(), sizeof payload);
  slot->read += head.size;
  if (line.event) rows_.see(r, tid, line.ts, line.dur);
  if (!commit_bytes(slots_, file_size_, encoded, false)) {
    slot->read -= head.size;
    return false;
  }
  if (on_heap) {
    HeapPayload heap;
    memcpy(&heap, payload, sizeof heap);
    release_large_payload(heap.data, heap.size);
  }
  count_taken(line);
  publish_count();
  return true;
}

void Writer::count_taken(const LineFormatter::Line& line) {
  ++records_in_file_;
  ++taken_in_part_;
  events_taken_ += line.event;
}

// Rarely: the threads take their ids from the same cache line.
void Writer::publish_count() {
  if (events_taken_) rings_.header()->events.fetch_add(events_taken_, std::memory_order_relaxed);
  events_taken_ = 0;
}

void Writer::add_line(std::string_view text, uint64_t ts_us) {
  FileHeader* h = rings_.header();
  if (over_limit() || spool_used_ + room_for_sums() + text.size() > h->spool_capacity) {
    h->dropped[int(over_limit() ? Drop::kSizeLimit : Drop::kRingFull)].fetch_add(1, std::memory_order_relaxed);
    return;
  }
  MemberFacts facts;
  facts.count(ts_us);
  append(text, facts);
  ++records_in_file_;
}

void Writer::name_thread(RingSlot* slot, int64_t tid) {
  slot->named_tid = tid;
  slot->named_part = part_;
  FileHeader* h = rings_.header();
  if (tid == int64_t(h->pid)) return;  // the prelude has it
  std::string text =
      lines_.metadata_line(h->next_id.fetch_add(1), tid, "thread_name", std::to_string(tid), "thread_name");
  if (spool_used_ + room_for_sums() + text.size() > h->spool_capacity) return;
  MemberFacts facts;
  facts.count(0);
  append(text, facts);
  ++records_in_file_;
}

namespace {

enum class Moves : uint8_t { kNothing, kBytes, kItems };

// Which calls return how much they moved: bytes, or items of a size that is among their values.
constexpr Moves moves(std::string_view role, std::string_view name) {
  if (role != "read" && role != "write" && role != "transfer") return Moves::kNothing;
  bool items = name.starts_with("fread") || name.starts_with("fwrite") || name.starts_with("__fread");
  return items ? Moves::kItems : Moves::kBytes;
}

constexpr Moves kMoves[] = {
#define IO_CALL(category, event, role, ...) moves(#role, #event),
#include "format/io_hooks.def"
};

int64_t bytes_moved(const IoPayload& io, const char* values) {
  if (io.call >= std::size(kMoves) || kMoves[io.call] == Moves::kNothing || !io.has_ret || io.ret <= 0) return 0;
  if (kMoves[io.call] == Moves::kBytes || io.values == 0) return io.ret;
  int64_t size;
  memcpy(&size, values, sizeof size);
  return size > 0 ? io.ret * size : io.ret;
}

constexpr uint32_t kOwnName = 1u << 31;  // the number of a name that is in the records, not among the interned ones
constexpr size_t kLongestSum = 1400;     // without its names

}  // namespace

const std::string& Writer::names_of_sum(uint32_t name) { return summed_names_.at(name).text; }

Writer::Summed Writer::sum_up(const Record& r) {
  if (r.kind != Kind::kIo && (!sums_.selective() || (r.kind != Kind::kSpan && r.kind != Kind::kEvent)))
    return Summed::kNo;
  if (r.flags & kOtherLane) return Summed::kNo;
  uint32_t name = r.name;
  if (r.kind == Kind::kEvent) {
    std::string_view payload = payload_of(r);
    Strings s;
    memcpy(&s, payload.data(), sizeof s);
    std::string both(payload.substr(sizeof s, s.first_size + s.second_size));
    both.insert(s.first_size, 1, '\0');
    name = event_names_.try_emplace(std::move(both), kOwnName + uint32_t(event_names_.size())).first->second;
    auto [named, is_new] = summed_names_.try_emplace(name);
    if (is_new) {
      named->second.name = payload.substr(sizeof s, s.first_size);
      named->second.category = payload.substr(sizeof s + s.first_size, s.second_size);
      envelope::append_names(named->second.text, named->second.name, named->second.category, rings_.header()->pid);
    }
  } else if (auto [named, is_new] = summed_names_.try_emplace(name); is_new) {
    std::tie(named->second.name, named->second.category) = lines_.names_of(name);
    named->second.text = lines_.names_text(name);
  }
  const Named& named = summed_names_.at(name);
  auto [start, us] = times_of(r, clock_);
  if (named.category == envelope::kTracerCategory) return Summed::kNo;
  if (sums_.selective() && !sums_.matches({named.category, named.name, int64_t(start), int64_t(us)}))
    return Summed::kNo;
  size_t bound = kLongestSum + named.text.size();
  if (spool_used_ + sums_bound_ + bound > rings_.header()->spool_capacity) return Summed::kNoRoom;
  IoPayload io{};
  if (r.kind == Kind::kIo) memcpy(&io, r.payload(), sizeof io);
  size_t before = sums_.size();
  Aggregation::Sum& sum = sums_.of(name, io.file, start);
  if (sums_.size() != before) sums_bound_ += bound;
  Aggregation::add(sum, us, bytes_moved(io, r.payload() + sizeof io), io.error != 0);
  return Summed::kYes;
}

// With everything that is written, so that a killed process has lost none of what is no longer in its rings.
void Writer::append_sums() {
  if (sums_.empty()) return;
  FileHeader* h = rings_.header();
  sums_bound_ = 0;
  for (const auto& [key, sum] : sums_.take()) {
    if (settings_.rotate_size && key.file) name_file(key.file, int64_t(h->pid));
    uint64_t ts = key.interval * sums_.interval_us();
    MemberFacts facts;
    facts.count(ts);
    append(lines_.aggregated_line(h->next_id.fetch_add(1), names_of_sum(key.name), ts, sums_.arguments(key, sum)),
           facts);
    ++records_in_file_;
  }
}

void Writer::name_files(const Record& r, int64_t tid) {
  IoPayload io;
  memcpy(&io, r.payload(), sizeof io);
  name_file(io.file, tid);
  for (uint32_t i = 0; i < io.values && i < 4; ++i) {
    uint64_t value;
    memcpy(&value, r.payload() + sizeof io + i * sizeof value, sizeof value);
    if (std::string_view(kCalls[io.call].keys[i]).ends_with("hash")) name_file(value, tid);
  }
}

// In a later part of a rotated trace: the file was named in an earlier one.
void Writer::name_file(uint64_t hash, int64_t tid) {
  constexpr size_t kLongestName = 32 * 1024;  // a path of 4 KiB, all of it escaped
  FileHeader* h = rings_.header();
  if (spool_used_ + room_for_sums() + kLongestName > h->spool_capacity)
    return;  // next time: the spool is about to be emptied
  std::string_view path = names_.missing(hash);
  if (path.empty()) return;
  char hex[17];
  snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(hash));
  std::string text = lines_.metadata_line(h->next_id.fetch_add(1), tid, "FH", path, hex);
  MemberFacts facts;
  facts.count(0);
  append(text, facts);
  ++records_in_file_;
}

namespace {

// A name may have the letter as well, but rarely, and looking for it is faster than looking for a quote.
bool is_event(std::string_view line) {
  constexpr size_t kLetter = envelope::kEvent.find('X');
  for (size_t at = line.find('X'); at != line.npos; at = line.find('X', at + 1))
    if (at >= kLetter && line.substr(at - kLetter).starts_with(envelope::kEvent)) return true;
  return false;
}

}  // namespace

// The last lines of the spool, once in a round and before it is emptied.
void Writer::remember() try {
  std::string_view lines(rings_.spool() + remembered_, spool_used_ - remembered_);
  remembered_ = spool_used_;
  if (!settings_.hang_s || lines.empty()) return;
  const char* from = lines.data() + lines.size();
  for (size_t n = 0; n <= kRecent && from; ++n)
    from = static_cast<const char*>(memrchr(lines.data(), '\n', size_t(from - lines.data())));
  if (from) lines.remove_prefix(size_t(from - lines.data()) + 1);
  std::lock_guard lock(recent_mutex_);
  for (size_t end; (end = lines.find('\n')) != lines.npos; lines.remove_prefix(end + 1)) {
    std::string_view line = lines.substr(0, end);
    if (!is_event(line)) continue;
    if (recent_.size() < kRecent) {
      recent_.emplace_back(line);
    } else {
      recent_[oldest_].assign(line);
      oldest_ = (oldest_ + 1) % kRecent;
    }
  }
} catch (const std::bad_alloc&) {
  // They are only shown when the program hangs.
}

std::vector<std::string> Writer::recent() {
  std::lock_guard lock(recent_mutex_);
  std::vector<std::string> out(recent_.begin() + ptrdiff_t(oldest_), recent_.end());
  out.insert(out.end(), recent_.begin(), recent_.begin() + ptrdiff_t(oldest_));
  return out;
}

// As many as there are calls in the ring. Those that are summed up have no line of their own, and no id.
void Writer::take_ids(RingSlot* slot, uint64_t head) {
  if (sums_.enabled() || slot->read < slot->numbered) return;
  uint64_t count = 0, mask = slot->map.capacity - 1;
  for (uint64_t at = slot->read; at < head;) {
    const auto& r = *reinterpret_cast<const Record*>(slot->map.data + (at & mask));
    count += r.id == kNumberedLater;
    at += r.size;
  }
  slot->numbered = head;
  if (count) slot->next_id = rings_.header()->next_id.fetch_add(count, std::memory_order_relaxed);
}

// Calls that are like earlier ones, as many as follow each other: nearly all that a program with much I/O records.
bool Writer::take_calls(RingSlot* slot, uint64_t head, int64_t tid) {
  uint64_t limit =
      rings_.header()->spool_capacity - std::min<uint64_t>(rings_.header()->spool_capacity, LineFormatter::kMaxAlike);
  LineFormatter::Calls calls{slot->map.data,
                             slot->map.capacity - 1,
                             slot->read,
                             head,
                             slot->next_id,
                             tid,
                             rings_.spool(),
                             spool_used_,
                             std::min<uint64_t>(limit, settings_.member_size)};
  WrittenCall written[LineFormatter::kMaxCalls];
  unsigned n = lines_.write_calls(calls, clock_, hints_, written);
  slot->next_id = calls.next_id;
  if (!n) return false;
  slot->read = calls.read;
  spool_used_ = calls.used;
  MemberFacts facts;
  for (unsigned i = 0; i < n; ++i) facts.count(written[i].ts);
  new_facts_.merge(facts);
  rows_.see_calls({written, n}, tid);
  records_in_file_ += n;
  taken_in_part_ += n;
  events_taken_ += n;
  return true;
}

// False if the spool is full or the disk rejects writes before `head` is reached.
bool Writer::take(RingSlot* slot, uint64_t head) {
  FileHeader* h = rings_.header();
  uint64_t mask = slot->map.capacity - 1;
  int64_t tid = slot->map.header->tid.load(std::memory_order_relaxed);
  bool room = true;
  if (slot->read < head && (slot->named_tid != tid || slot->named_part != part_)) name_thread(slot, tid);
  // Nothing but lines is made of the records.
  bool plain = !sums_.enabled() && !settings_.rotate_size;
  take_ids(slot, head);
  if (!sums_.enabled()) head = std::min(head, slot->numbered);
  while (slot->read < head) {
    if (plain && take_calls(slot, head, tid)) {
      if (spool_used_ < settings_.member_size) continue;
      room = false;
      break;
    }
    auto& r = *reinterpret_cast<Record*>(slot->map.data + (slot->read & mask));
    if (r.id == kNumberedLater && !sums_.enabled()) r.id = slot->next_id++;
    if (r.kind == Kind::kMetadata && names_.has(r)) {
      slot->read += r.size;
      continue;
    }
    if (sums_.enabled()) {
      Summed summed = sum_up(r);
      if (summed == Summed::kYes) {
        release_payload(r);
        slot->read += r.size;
        ++taken_in_part_;
        ++events_taken_;
        ++events_summed_;
        continue;
      }
      if (summed == Summed::kNoRoom && (spool_used_ > 0 || !sums_.empty())) {
        room = false;
        break;
      }
    }
    if (r.id == kNumberedLater) r.id = h->next_id.fetch_add(1, std::memory_order_relaxed);
    if (r.kind == Kind::kIo && settings_.rotate_size) name_files(r, tid);
    size_t bound = lines_.bound(r);
    if (spool_used_ + room_for_sums() + bound > h->spool_capacity) {
      if (spool_used_ > 0 || !sums_.empty() || bound <= h->spool_capacity) {
        room = false;
        break;
      }
      if (!take_large(slot, r, tid)) {
        room = false;
        break;
      }
      continue;
    }
    char* start = rings_.spool() + spool_used_;
    LineFormatter::Line line;
    char* end = lines_.write(r, tid, clock_, start, &line, &hints_, spool_used_);
    if (r.kind == Kind::kMetadata) names_.note(r);
    spool_used_ += size_t(end - start);
    new_facts_.count(line.ts);
    if (line.event) rows_.see(r, tid, line.ts, line.dur);
    count_taken(line);
    slot->read += r.size;
    release_payload(r);
    if (spool_used_ >= settings_.member_size) {
      room = false;
      break;
    }
  }
  publish_count();
  return room;
}

// The rows go on where the detail does not.
void Writer::see_unwritten(const Record& r, int64_t tid) {
  auto [start, us] = times_of(r, clock_);
  rows_.see(r, tid, start, us);
}

void Writer::discard(const std::vector<RingSlot*>& slots) {
  FileHeader* h = rings_.header();
  for (RingSlot* s : slots) {
    uint64_t head = s->map.header->head.load(std::memory_order_acquire);
    uint64_t n = 0;
    for (; s->read < head; ++n) {
      const auto& r = *reinterpret_cast<const Record*>(s->map.data + (s->read & (s->map.capacity - 1)));
      see_unwritten(r, s->map.header->tid.load(std::memory_order_relaxed));
      release_payload(r);
      s->read += r.size;
    }
    s->map.header->tail.store(s->read, std::memory_order_release);
    h->dropped[int(Drop::kSizeLimit)].fetch_add(n, std::memory_order_relaxed);
  }
}

bool Writer::drain(const std::vector<RingSlot*>& slots) {
  // Up to the current heads: a producer that never pauses must not keep us here. Round robin: each of many full rings
  // should get some room soon.
  constexpr uint64_t kTurn = 64 << 10;
  heads_.clear();
  for (RingSlot* s : slots) heads_.push_back(s->map.header->head.load(std::memory_order_acquire));
  for (bool more = true; more;) {
    more = false;
    for (size_t i = 0; i < slots.size(); ++i) {
      RingSlot* s = slots[i];
      uint64_t upto = std::min(heads_[i], s->read + kTurn);
      while (s->read < upto && !take(s, upto)) {
        if (failing_ || !cut_member(slots)) return false;
        if (over_limit()) return true;
      }
      more |= s->read < heads_[i];
    }
  }
  return true;
}

bool Writer::pump(const std::vector<RingSlot*>& slots, bool force) {
  slots_ = slots;
  uint64_t commits_before = commits_.load(std::memory_order_relaxed);
  bool nothing = true;
  for (RingSlot* s : slots) nothing &= s->map.header->head.load(std::memory_order_acquire) == s->read;
  if (nothing && !file_.is_open()) return true;  // a process without records leaves no file
  if (nothing && uncommitted() == 0 && tail_committed_ == 0 && sums_.empty()) return true;
  if (!ensure_open()) return false;
  if (over_limit()) {
    warn_once("the trace has reached DFTRACER_MAX_SIZE; further events are dropped and counted");
    if (uncommitted() && !commit_tail(slots)) return false;
    discard(slots);
    write_rows();
    return true;
  }
  failing_ = false;
  uint64_t now = monotonic_ns();
  // By the clock: a full spool is written earlier, and would otherwise let every file have a sum of its own.
  if (now - sums_since_ns_ >= settings_.flush_ms * kMillisecond) {
    sums_.begin_period();
    sums_since_ns_ = now;
  }
  bool drained = drain(slots);
  remember();
  if (!drained) return false;
  write_rows();
  now = monotonic_ns();
  if (spool_used_ >= kCutSize && !cut_member(slots)) return false;
  bool due = now - last_commit_ns_ >= settings_.flush_ms * kMillisecond / 2;
  if ((uncommitted() || !sums_.empty()) && (force || due) && !commit_tail(slots)) return false;
  if (tail_committed_ && now - tail_since_ns_ > kTailAge && !cut_member(slots)) return false;
  // Only if something was written: then the number is known to be ours, and not reused by the program.
  if (commits_.load(std::memory_order_relaxed) != commits_before && file_.vanished())
    warn_once("the trace file " + file_.path() + " was removed; its events are lost");
  return true;
}

}  // namespace dft
