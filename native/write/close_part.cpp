// How a trace file ends: the closing record, and the next part of a rotated trace.
#include <algorithm>
#include <utility>

#include "format/arguments.hpp"
#include "format/envelope.hpp"
#include "record/engine.hpp"
#include "record/self_cost.hpp"
#include "write/writer.hpp"

namespace dft {
bool Writer::write_closing(uint64_t own_cpu_ns, bool last) {
  FileHeader* h = rings_.header();
  uint64_t ring_full = h->dropped[int(Drop::kRingFull)].load();
  uint64_t disk = h->dropped[int(Drop::kDisk)].load();
  uint64_t limit = h->dropped[int(Drop::kSizeLimit)].load();
  uint64_t in_signal = h->dropped[int(Drop::kInSignal)].load();
  uint64_t memory = h->dropped[int(Drop::kMemory)].load();
  Anchor now = take_anchor();
  uint64_t mapped = clock_.to_epoch_ns(now.ticks);
  std::string args;
  append_arg(args, "num_events", int64_t(records_in_file_));
  append_arg(args, "dropped", int64_t(ring_full + disk + limit + in_signal + memory));
  append_arg(args, "dropped_ring_full", int64_t(ring_full));
  append_arg(args, "dropped_disk", int64_t(disk));
  append_arg(args, "dropped_size_limit", int64_t(limit));
  if (in_signal) append_arg(args, "dropped_in_signal", int64_t(in_signal));
  if (memory) append_arg(args, "dropped_memory", int64_t(memory));
  if (sums_.enabled()) append_arg(args, "aggregated", int64_t(events_summed_));
  if (uint64_t cut = g_cut_values.load()) append_arg(args, "values_cut", int64_t(cut));
  append_arg(args, "bytes", int64_t(bytes()));
  append_arg(args, "members", int64_t(members_));
  uint64_t cost = measure_event_cost();
  append_arg(args, "writer_cpu_us", int64_t(own_cpu_ns / 1000));
  append_arg(args, "event_cost_ns", int64_t(cost / 100));
  append_arg(args, "overhead_us", int64_t(h->events.load() * cost / 100000));
  append_arg(args, "clock", clock_source());
  append_arg(args, "clock_start_ns", int64_t(clock_.first().mono_ns + clock_.epoch_offset()));
  append_arg(args, "clock_end_ns", int64_t(mapped));
  // How far the wall clock has drifted from ours since the start (NTP steps, slewing).
  append_arg(args, "clock_drift_ns", int64_t(realtime_ns()) - int64_t(mapped));
  append_arg(args, "compression", settings_.compress ? Gzip::backend() : "none");
  append_arg(args, "recoverable", rings_.recoverable() ? 1 : 0);
  if (part_ > 1 || !last) append_arg(args, "part", part_);
  if (!last) append_arg(args, "continues", 1);
  if (closing_facts_) closing_facts_(&args);
  uint64_t ts = mapped / 1000;
  std::string text = lines_.event_line(h->next_id.fetch_add(1), int64_t(h->pid), envelope::kEndOfTrace, ts, args);
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
    // More may arrive before the next try.
    spool_used_ -= text.size();
    new_facts_ = before;
  }
  return written;
}

bool Writer::rotate() {
  if (!write_closing(0, false)) return false;
  earlier_parts_ += file_size_;
  earlier_files_.push_back({file_.path(), file_.id(), file_size_, keep_part_});
  keep_part_ = std::exchange(keep_next_part_, false);
  file_.close();
  ++part_;
  if (settings_.black_box) {
    go_round();
  } else {
    remove_oldest_parts();
  }
  std::string part = "-part" + std::to_string(part_);
  requested_path_ = with_suffix(stem_ + part, settings_.compress);
  fallback_path_ = with_suffix(fallback_stem_ + part, settings_.compress);
  return ensure_open();
}

void Writer::remove_part(size_t at) {
  remove_if_same(earlier_files_[at].path, earlier_files_[at].file);
  earlier_files_.erase(earlier_files_.begin() + ptrdiff_t(at));
}

void Writer::remove_oldest_parts() {
  if (settings_.rotate_keep == 0) earlier_files_.clear();
  while (settings_.rotate_keep && earlier_files_.size() >= settings_.rotate_keep) remove_part(0);
}

// Makes room for the next part. Parts with an anomaly stay longer, but never take more than half of the room: the
// newest detail is what a sudden end will be explained by.
void Writer::go_round() {
  uint64_t all = 0, kept = 0;
  for (const EarlierFile& e : earlier_files_) {
    all += e.size;
    if (e.kept) kept += e.size;
  }
  for (EarlierFile& e : earlier_files_) {
    if (kept <= settings_.black_box / 2) break;
    if (e.kept) kept -= e.size;
    e.kept = false;
  }
  // A part may be longer than intended by one member.
  uint64_t next = settings_.rotate_size + std::min(settings_.member_size / 4, settings_.rotate_size);
  while (!earlier_files_.empty() && all + next > settings_.black_box) {
    auto oldest = std::find_if(earlier_files_.begin(), earlier_files_.end(), [](auto& e) { return !e.kept; });
    if (oldest == earlier_files_.end()) oldest = earlier_files_.begin();
    all -= oldest->size;
    remove_part(size_t(oldest - earlier_files_.begin()));
  }
}

// The part in use is kept; also the one before if it has hardly begun, and the next if it is nearly over.
void Writer::keep_detail(const char* reason, const StepRow* row) {
  keep_part_ = true;
  if (2 * file_size_ < settings_.rotate_size && !earlier_files_.empty()) earlier_files_.back().kept = true;
  keep_next_part_ |= 4 * file_size_ > 3 * settings_.rotate_size;
  if (std::string_view(reason) == "trigger" && std::exchange(triggered_part_, part_) == part_) return;
  std::string args;
  append_arg(args, "reason", reason);
  if (row) append_arg(args, "step", black_box_.last_step());
  if (row && row->epoch >= 0) append_arg(args, "epoch", row->epoch);
  uint64_t ts = clock_.to_epoch_us(take_anchor().ticks);
  FileHeader* h = rings_.header();
  add_line(lines_.event_line(h->next_id.fetch_add(1), int64_t(h->pid), "kept", ts, args), ts);
}

void Writer::watch_for_anomaly(const std::vector<StepRow>& rows) {
  if (!settings_.black_box || !file_.is_open()) return;
  for (const StepRow& row : rows)
    if (const char* reason = black_box_.see(row)) keep_detail(reason, &row);
  if (const char* reason = black_box_.look(directory_of(file_.path()), monotonic_ns())) keep_detail(reason, nullptr);
  if (const char* reason = asked_to_keep()) keep_detail(reason, nullptr);
}

void Writer::finish(const std::vector<RingSlot*>& slots, uint64_t own_cpu_ns) {
  slots_ = slots;
  complete_ = pump(slots, true);
  rows_.finish(int64_t(clock_.to_epoch_us(take_anchor().ticks)));
  write_rows();
  // The limit may have been reached in the middle of that: the rest is dropped, counted and reported.
  auto left = [](RingSlot* s) { return s->map.header->head.load(std::memory_order_acquire) != s->read; };
  if (complete_ && over_limit() && std::any_of(slots.begin(), slots.end(), left)) complete_ = pump(slots, true);
  if (!complete_ || !file_.is_open()) return;
  last_part_ = true;
  append_sums();
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
