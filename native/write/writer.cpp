#include "write/writer.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "format/envelope.hpp"
#include "format/io_calls.hpp"
#include "format/json.hpp"
#include "record/engine.hpp"
#include "record/large_payloads.hpp"
#include "record/self_cost.hpp"
#include "record/warn_once.hpp"

namespace dft {
namespace {

constexpr uint64_t kCutSize = 256 * 1024;  // enough text for a member of its own
constexpr uint64_t kTailAge = 1000000000;  // small members are joined after a second
constexpr uint64_t kMillisecond = 1000000;

void add_arg(std::string& out, const char* key, int64_t value) {
  out += ",\"";
  out += key;
  out += "\":";
  append_int(out, value);
}

void add_arg(std::string& out, const char* key, std::string_view value) {
  out += ",\"";
  out += key;
  out += "\":";
  append_json_string(out, value);
}

void release_payload(const Record& r) {
  if (!(r.flags & kOnHeap)) return;
  std::string_view payload = payload_of(r);
  release_large_payload(const_cast<char*>(payload.data()), payload.size());
}

}  // namespace

Writer::Writer(const Settings& settings, RingFile& rings, ClockMap& clock, LineFormatter& lines)
    : settings_(settings), rings_(rings), clock_(clock), lines_(lines), names_(settings.rotate_size != 0) {}

void Writer::set_target(std::string requested_path, std::string fallback_path, Claimant claimant) {
  requested_path_ = std::move(requested_path);
  fallback_path_ = std::move(fallback_path);
  claimant_ = std::move(claimant);
}

bool Writer::ensure_open() { return (file_.is_open() || create_file()) && (named_ || settle_name()); }

bool Writer::create_file() {
  if (!file_.create(fallback_path_)) {
    refused();
    return false;
  }
  named_ = false;
  file_size_ = 0;
  state_path();
  if (part_ > 1) append_prelude();
  set_commit(0, kCompacting);
  return true;
}

bool Writer::settle_name() {
  if (requested_path_ != fallback_path_) {
    // Others who want the name read here whose it is: a file with a requested name is never without that.
    if (rewriting_ && !commit_tail({})) return false;
    claim(requested_path_);
  }
  named_ = true;
  if (part_ == 1) {
    stem_ = without_suffix(file_.path());
    fallback_stem_ = without_suffix(fallback_path_);
  }
  return true;
}

// Both names stand in the ring file while the file changes from one to the other.
Claim Writer::claim(const std::string& path) {
  char* other = rings_.header()->path[path_slot_ ^ 1];
  snprintf(other, sizeof rings_.header()->path[0], "%s", path.c_str());
  Claim claim = file_.claim(path, claimant_);
  if (claim != Claim::kGranted) {
    other[0] = 0;
    if (claim == Claim::kForeign)
      warn_once(path + " exists and is not a dftracer trace; the trace is written to " + file_.path());
    return claim;
  }
  uint64_t commit = rings_.header()->commit.load();
  state_path();
  set_commit(committed_size(commit), CommitState(commit & 3));
  return claim;
}

// For the reader of a dead process: takes effect with the next set_commit().
void Writer::state_path() {
  path_slot_ ^= 1;
  char* path = rings_.header()->path[path_slot_];
  snprintf(path, sizeof rings_.header()->path[0], "%s", file_.path().c_str());
}

void Writer::set_commit(uint64_t size, CommitState state) {
  rings_.header()->commit.store(commit_word(path_slot_, size, state), std::memory_order_release);
}

bool Writer::rename_to(const std::string& path) {
  if (!file_.is_open() || claim(path) != Claim::kGranted) return false;
  if (part_ == 1) stem_ = without_suffix(path);
  return true;
}

void Writer::set_prelude(Prelude prelude) {
  prelude_ = std::move(prelude);
  append_prelude();
  set_commit(0, kCompacting);
}

void Writer::append_prelude() {
  names_.new_part();
  MemberFacts bracket;
  bracket.count(0);
  append(envelope::kFirstLine, bracket);
  append(prelude_.text, prelude_.facts);
  records_in_file_ = prelude_.records;
  taken_in_part_ = 0;
  // These lines are in no ring: until the first commit the spool is the only place that has them.
  FileHeader* h = rings_.header();
  h->tail_offset.store(0);
  keep_as_tail();
  rewriting_ = true;
  h->spool_size.store(tail_committed_);
}

void Writer::append(std::string_view text, const MemberFacts& facts) {
  memcpy(rings_.spool() + spool_used_, text.data(), text.size());
  spool_used_ += text.size();
  new_facts_.merge(facts);
}

void Writer::refused() {
  warn_once("cannot write the trace: " + file_.error() + "; events are kept in memory while they fit");
  warned_ = true;
  failing_ = true;
  rings_.header()->refusing.store(1, std::memory_order_relaxed);
}

std::string_view Writer::encode(std::string_view text, const MemberFacts& facts) {
  return settings_.compress ? gzip_.member(text, facts) : text;
}

// The order of the stores is what recovery relies on: see CommitState.
bool Writer::commit_bytes(const std::vector<RingSlot*>& slots, uint64_t offset, std::string_view bytes,
                          bool replacing) {
  FileHeader* h = rings_.header();
  if (replacing) {
    h->spool_size.store(tail_committed_, std::memory_order_release);
    set_commit(offset, kCompacting);
  } else {
    set_commit(file_size_, kPreparing);
  }
  for (RingSlot* s : slots) s->map.header->pending.store(s->read, std::memory_order_release);
  uint64_t size = offset + bytes.size();
  h->closed_from.store(offset, std::memory_order_release);
  h->closed_at.store(closing_ ? size : 0, std::memory_order_release);
  if (!file_.write_at(offset, bytes)) {
    refused();
    // When replacing, the file has been cut at `offset`: the spool stays the truth until it is written.
    rewriting_ = rewriting_ || replacing;
    file_size_ = offset;
    if (!replacing) set_commit(file_size_, kIdle);
    return false;
  }
  if (size < file_size_) file_.truncate(size);
  file_size_ = size;
  set_commit(size, kCommitted);
  for (RingSlot* s : slots) s->map.header->tail.store(s->read, std::memory_order_release);
  commits_.fetch_add(1, std::memory_order_relaxed);
  set_commit(size, kIdle);
  ++members_;
  rewriting_ = false;
  failing_ = false;
  h->refusing.store(0, std::memory_order_relaxed);
  last_commit_ns_ = monotonic_ns();
  return true;
}

void Writer::keep_as_tail() {
  tail_committed_ = spool_used_;
  tail_facts_.merge(new_facts_);
  new_facts_ = {};
}

void Writer::empty_spool() {
  spool_used_ = tail_committed_ = 0;
  tail_facts_ = new_facts_ = {};
}

// Makes one piece of everything in the spool, in the place of what the file has of it.
bool Writer::commit_whole(const std::vector<RingSlot*>& slots) {
  MemberFacts facts = tail_facts_;
  facts.merge(new_facts_);
  bool replacing = tail_committed_ > 0;
  uint64_t offset = replacing ? rings_.header()->tail_offset.load() : file_size_;
  return commit_bytes(slots, offset, encode({rings_.spool(), spool_used_}, facts), replacing);
}

// Puts the new text into the file and keeps it in the spool, to be joined with what follows.
bool Writer::commit_tail(const std::vector<RingSlot*>& slots) {
  if (rewriting_) {
    if (!commit_whole(slots)) return false;
    tail_since_ns_ = last_commit_ns_;
  } else {
    if (tail_committed_ == 0) {
      tail_since_ns_ = monotonic_ns();
      rings_.header()->tail_offset.store(file_size_, std::memory_order_release);
    }
    std::string_view text(rings_.spool() + tail_committed_, uncommitted());
    if (!commit_bytes(slots, file_size_, encode(text, new_facts_), false)) return false;
  }
  if (settings_.compress) {
    keep_as_tail();
  } else {
    empty_spool();
  }
  return true;
}

bool Writer::cut_member(const std::vector<RingSlot*>& slots) {
  if (spool_used_ > 0) {
    bool plain_tail = !settings_.compress && !rewriting_;
    if (plain_tail ? uncommitted() && !commit_tail(slots) : !commit_whole(slots)) return false;
    empty_spool();
  }
  return rotate_if_due();
}

bool Writer::rotate_if_due() {
  bool due = settings_.rotate_size && file_size_ >= settings_.rotate_size && taken_in_part_ > 0;
  return !due || closing_ || last_part_ || rotate();
}

bool Writer::take_large(RingSlot* slot, const Record& r, int64_t tid) {
  // Larger than the spool: a member of its own, straight from the heap. A new part has its first lines to write.
  if (!cut_member(slots_) || !cut_member(slots_) || spool_used_ > 0) return false;
  LineFormatter::Line line;
  std::string text;
  std::string_view encoded;
  try {
    text.resize(lines_.bound(r));
    char* end = lines_.write(r, tid, clock_, text.data(), &line);
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
  // Once committed, the record's place is the producer's again.
  Record head = r;
  char payload[sizeof(HeapPayload)];
  bool on_heap = r.flags & kOnHeap;
  if (on_heap) memcpy(payload, r.payload(), sizeof payload);
  slot->read += head.size;
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

// Seldom: the threads take their ids from the same cache line.
void Writer::publish_count() {
  if (events_taken_) rings_.header()->events.fetch_add(events_taken_, std::memory_order_relaxed);
  events_taken_ = 0;
}

void Writer::name_thread(RingSlot* slot, int64_t tid) {
  slot->named_tid = tid;
  slot->named_part = part_;
  FileHeader* h = rings_.header();
  if (tid == int64_t(h->pid)) return;  // the prelude has it
  std::string text =
      lines_.metadata_line(h->next_id.fetch_add(1), tid, "thread_name", std::to_string(tid), "thread_name");
  if (spool_used_ + text.size() > h->spool_capacity) return;
  MemberFacts facts;
  facts.count(0);
  append(text, facts);
  ++records_in_file_;
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
  if (spool_used_ + kLongestName > h->spool_capacity) return;  // next time: the spool is about to be emptied
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

// False when the spool is full or the disk refuses before `head` is reached.
bool Writer::take(RingSlot* slot, uint64_t head) {
  FileHeader* h = rings_.header();
  uint64_t mask = slot->map.capacity - 1;
  int64_t tid = slot->map.header->tid.load(std::memory_order_relaxed);
  bool room = true;
  if (slot->read < head && (slot->named_tid != tid || slot->named_part != part_)) name_thread(slot, tid);
  while (slot->read < head) {
    const auto& r = *reinterpret_cast<const Record*>(slot->map.data + (slot->read & mask));
    if (r.kind == Kind::kMetadata && names_.has(r)) {
      slot->read += r.size;
      continue;
    }
    if (r.kind == Kind::kIo && settings_.rotate_size) name_files(r, tid);
    size_t bound = lines_.bound(r);
    if (spool_used_ + bound > h->spool_capacity) {
      if (spool_used_ > 0 || bound <= h->spool_capacity) {
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
    char* end = lines_.write(r, tid, clock_, start, &line);
    spool_used_ += size_t(end - start);
    new_facts_.count(line.ts);
    if (r.kind == Kind::kMetadata) names_.note(r);
    count_taken(line);
    release_payload(r);
    slot->read += r.size;
    if (spool_used_ >= settings_.member_size) {
      room = false;
      break;
    }
  }
  publish_count();
  return room;
}

void Writer::discard(const std::vector<RingSlot*>& slots) {
  FileHeader* h = rings_.header();
  for (RingSlot* s : slots) {
    uint64_t head = s->map.header->head.load(std::memory_order_acquire);
    uint64_t n = 0;
    for (; s->read < head; ++n) {
      const auto& r = *reinterpret_cast<const Record*>(s->map.data + (s->read & (s->map.capacity - 1)));
      release_payload(r);
      s->read += r.size;
    }
    s->map.header->tail.store(s->read, std::memory_order_release);
    h->dropped[int(Drop::kSizeLimit)].fetch_add(n, std::memory_order_relaxed);
  }
}

bool Writer::drain(const std::vector<RingSlot*>& slots) {
  // Up to the heads seen now: a producer that never pauses must not keep us here. By turns: of many full rings each
  // is to get some room soon.
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
  if (nothing && uncommitted() == 0 && tail_committed_ == 0) return true;
  if (!ensure_open()) return false;
  if (over_limit()) {
    warn_once("the trace has reached DFTRACER_MAX_SIZE; further events are dropped and counted");
    if (uncommitted() && !commit_tail(slots)) return false;
    discard(slots);
    return true;
  }
  failing_ = false;
  if (!drain(slots)) return false;
  uint64_t now = monotonic_ns();
  if (spool_used_ >= kCutSize && !cut_member(slots)) return false;
  bool due = now - last_commit_ns_ >= settings_.flush_ms * kMillisecond / 2;
  if (uncommitted() && (force || due) && !commit_tail(slots)) return false;
  if (tail_committed_ && now - tail_since_ns_ > kTailAge && !cut_member(slots)) return false;
  // Only where something was written: the number is known to be ours then, and not one that the program is reusing.
  if (commits_.load(std::memory_order_relaxed) != commits_before && file_.vanished())
    warn_once("the trace file " + file_.path() + " was removed; its events are lost");
  return true;
}

bool Writer::write_closing(uint64_t own_cpu_ns, bool last) {
  FileHeader* h = rings_.header();
  uint64_t ring_full = h->dropped[int(Drop::kRingFull)].load();
  uint64_t disk = h->dropped[int(Drop::kDisk)].load();
  uint64_t limit = h->dropped[int(Drop::kSizeLimit)].load();
  uint64_t in_signal = h->dropped[int(Drop::kInSignal)].load();
  uint64_t memory = h->dropped[int(Drop::kMemory)].load();
  Anchor now = take_anchor();
  clock_.add(now);
  uint64_t mapped = clock_.to_epoch_ns(now.ticks);
  std::string args;
  add_arg(args, "num_events", int64_t(records_in_file_));
  add_arg(args, "dropped", int64_t(ring_full + disk + limit + in_signal + memory));
  add_arg(args, "dropped_ring_full", int64_t(ring_full));
  add_arg(args, "dropped_disk", int64_t(disk));
  add_arg(args, "dropped_size_limit", int64_t(limit));
  if (in_signal) add_arg(args, "dropped_in_signal", int64_t(in_signal));
  if (memory) add_arg(args, "dropped_memory", int64_t(memory));
  if (uint64_t cut = g_cut_values.load()) add_arg(args, "values_cut", int64_t(cut));
  add_arg(args, "bytes", int64_t(bytes()));
  add_arg(args, "members", int64_t(members_));
  uint64_t cost = measure_event_cost();
  add_arg(args, "writer_cpu_us", int64_t(own_cpu_ns / 1000));
  add_arg(args, "event_cost_ns", int64_t(cost / 100));
  add_arg(args, "overhead_us", int64_t(h->events.load() * cost / 100000));
  add_arg(args, "clock", clock_source());
  add_arg(args, "clock_start_ns", int64_t(clock_.first().mono_ns + clock_.epoch_offset()));
  add_arg(args, "clock_end_ns", int64_t(mapped));
  // How far the wall clock has moved against ours since the start (NTP steps, slewing).
  add_arg(args, "clock_drift_ns", int64_t(realtime_ns()) - int64_t(mapped));
  add_arg(args, "compression", settings_.compress ? Gzip::backend() : "none");
  add_arg(args, "recoverable", rings_.recoverable() ? 1 : 0);
  if (part_ > 1 || !last) add_arg(args, "part", part_);
  if (!last) add_arg(args, "continues", 1);
  if (closing_facts_) closing_facts_(&args);
  uint64_t ts = mapped / 1000;
  std::string text = lines_.event_line(h->next_id.fetch_add(1), int64_t(h->pid), "end", ts, args);
  text += envelope::kLastLine;
  MemberFacts facts;
  facts.count(ts);
  facts.count(0);  // the bracket
  MemberFacts before = new_facts_;
  append(text, facts);
  closing_ = true;
  bool written = cut_member(slots_);
  closing_ = false;
  if (!written) {
    // More may come before the next try.
    spool_used_ -= text.size();
    new_facts_ = before;
  }
  return written;
}

bool Writer::rotate() {
  if (!write_closing(0, false)) return false;
  earlier_parts_ += file_size_;
  earlier_files_.emplace_back(file_.path(), file_.id());
  file_.close();
  ++part_;
  remove_oldest_parts();
  std::string part = "-part" + std::to_string(part_);
  requested_path_ = with_suffix(stem_ + part, settings_.compress);
  fallback_path_ = with_suffix(fallback_stem_ + part, settings_.compress);
  return ensure_open();
}

void Writer::remove_oldest_parts() {
  if (settings_.rotate_keep == 0) earlier_files_.clear();
  while (settings_.rotate_keep && earlier_files_.size() >= settings_.rotate_keep) {
    const auto& [path, file] = earlier_files_.front();
    remove_if_same(path, file);
    earlier_files_.erase(earlier_files_.begin());
  }
}

void Writer::finish(const std::vector<RingSlot*>& slots, uint64_t own_cpu_ns) {
  slots_ = slots;
  complete_ = pump(slots, true);
  if (!complete_ || !file_.is_open()) return;
  last_part_ = true;
  complete_ = cut_member(slots);
  size_before_closing_ = complete_ ? file_size_ : 0;
  complete_ = complete_ && write_closing(own_cpu_ns, true);
}

void Writer::reopen() {
  last_part_ = false;
  if (!file_.is_open() || size_before_closing_ == 0) return;
  rings_.header()->closed_at.store(0);
  file_.truncate(size_before_closing_);
  file_size_ = size_before_closing_;
  set_commit(file_size_, kIdle);
}

}  // namespace dft
