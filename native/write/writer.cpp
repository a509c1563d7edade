#include "write/writer.hpp"

#include <algorithm>

#include "format/envelope.hpp"
#include "record/names.hpp"
#include "record/warn_once.hpp"

namespace dft {

Writer::Writer(const Settings& settings, RingFile& rings, ClockMap& clock, LineFormatter& lines)
    : settings_(settings), rings_(rings), clock_(clock), lines_(lines), names_(settings.rotate_size != 0) {
  sums_.setup(settings);
}

void Writer::set_target(std::string requested_path, std::string fallback_path, Claimant claimant) {
  requested_path_ = std::move(requested_path);
  fallback_path_ = std::move(fallback_path);
  claimant_ = std::move(claimant);
}

void Writer::take_descriptors() {
  int ring = rings_.descriptor(), file = file_.descriptor(), rows = row_file_.descriptor();
  if (!take_own_descriptors({ring, file, rows})) return;
  rings_.keep_descriptor(ring);
  file_.keep_descriptor(file);
  row_file_.keep_descriptor(rows);
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
    // Others that want the name read here whose it is: a file with a requested name always has this.
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

// The ring file has both names while the file changes from one to the other.
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
  if (row_file_.is_open()) row_file_.rename_to(rows_of(path));
  return true;
}

void Writer::set_row_facts(std::string json, int64_t began_us) {
  row_facts_ = std::move(json);
  rows_.begin(name_of, began_us);
}

// Beside the trace, under its name; a file of that name that is not ours stays.
bool Writer::open_row_file() {
  if (row_file_.is_open()) return true;
  std::string stem = stem_.empty() ? without_suffix(fallback_path_) : stem_;
  std::string own = fallback_stem_.empty() ? without_suffix(fallback_path_) : fallback_stem_;
  return row_file_.create(rows_of(stem)) || (own != stem && row_file_.create(rows_of(own)));
}

// A failing disk costs the trace first; of the rows as much is kept as could be of use.
void Writer::write_rows() {
  constexpr size_t kMaxUnwritten = 4 << 20;
  rows_.settle();
  std::vector<StepRow> rows = rows_.take();
  watch_for_anomaly(rows);
  std::string rank = rows_.take_late_rank();
  if (!rank.empty() && row_facts_.find("\"rank\":") == row_facts_.npos) {
    row_facts_ += rank;
    if (row_file_size_) append_fact_block(unwritten_rows_, row_facts_ + '}');
  }
  if (unwritten_rows_.size() < kMaxUnwritten) append_row_blocks(unwritten_rows_, rows);
  if (unwritten_rows_.empty() || !open_row_file()) return;
  std::string bytes;
  if (row_file_size_ == 0) append_fact_block(bytes, row_facts_ + '}');
  bytes += unwritten_rows_;
  if (!row_file_.write_at(row_file_size_, bytes)) return;
  row_file_size_ += bytes.size();
  unwritten_rows_.clear();
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
  // These lines are in no ring: until the first commit only the spool has them.
  FileHeader* h = rings_.header();
  h->tail_offset.store(0);
  keep_as_tail();
  rewriting_ = true;
  remembered_ = spool_used_;
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

std::string_view Writer::encode_spool(uint64_t from, const MemberFacts& facts) {
  std::string_view text(rings_.spool() + from, spool_used_ - from);
  return settings_.compress ? gzip_.member(text, facts, &hints_, from) : text;
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
    // When replacing, the file has been truncated at `offset`: the spool stays authoritative until it is written.
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
  remember();
  spool_used_ = tail_committed_ = remembered_ = 0;
  tail_facts_ = new_facts_ = {};
  hints_.clear();
  lines_.begin_text();
}

// Writes everything in the spool as one member, replacing what the file has of it.
bool Writer::commit_whole(const std::vector<RingSlot*>& slots) {
  if (!slots.empty()) append_sums();
  MemberFacts facts = tail_facts_;
  facts.merge(new_facts_);
  bool replacing = tail_committed_ > 0;
  uint64_t offset = replacing ? rings_.header()->tail_offset.load() : file_size_;
  return commit_bytes(slots, offset, encode_spool(0, facts), replacing);
}

// Writes the new text to the file and keeps it in the spool, to be merged with what follows.
bool Writer::commit_tail(const std::vector<RingSlot*>& slots) {
  if (rewriting_) {
    if (!commit_whole(slots)) return false;
    tail_since_ns_ = last_commit_ns_;
  } else {
    if (!slots.empty()) append_sums();
    if (tail_committed_ == 0) {
      tail_since_ns_ = monotonic_ns();
      rings_.header()->tail_offset.store(file_size_, std::memory_order_release);
    }
    if (!commit_bytes(slots, file_size_, encode_spool(tail_committed_, new_facts_), false)) return false;
  }
  if (settings_.compress) {
    keep_as_tail();
  } else {
    empty_spool();
  }
  return true;
}

bool Writer::cut_member(const std::vector<RingSlot*>& slots) {
  if (!slots.empty()) append_sums();
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

}  // namespace dft
