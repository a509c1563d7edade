#include "session/complete_trace.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "format/arguments.hpp"
#include "format/envelope.hpp"
#include "format/json.hpp"
#include "format/member.hpp"
#include "record/quiet_writes.hpp"
#include "write/gzip.hpp"
#include "write/line.hpp"

namespace dft {
namespace {

constexpr size_t kBeginning = 4 << 20;        // the opening records of a trace lie within
constexpr uint64_t kLargestMember = 1 << 28;  // that is read back

struct Rest {
  std::string text;
  MemberFacts facts;
  uint64_t records = 0;
  uint64_t lost = 0;  // payloads that lived on the dead process's heap
  uint64_t last_ts = 0;
  uint64_t next_id = 0;
  bool empty() const { return records == 0 && lost == 0; }
};

// The facts about text that the dead process had already formatted.
void add_facts(std::string_view text, MemberFacts* facts) {
  while (!text.empty()) {
    size_t n = std::min(text.find('\n'), text.size() - 1) + 1;
    std::string_view line = text.substr(0, n);
    // A quote inside a string is escaped, and a record's own time comes before its args: so this is the time.
    size_t at = line.find(envelope::kTs);
    facts->count(at == line.npos ? 0 : strtoull(line.data() + at + envelope::kTs.size(), nullptr, 10));
    text.remove_prefix(n);
  }
}

// The ids of the events in a text; its last line may be incomplete.
void add_event_ids(std::string_view text, std::vector<uint64_t>* ids) {
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    // Within a string its quotes would be escaped.
    bool event = line.starts_with(envelope::kId) && line.find(envelope::kEvent) != line.npos;
    if (event && line.find(envelope::kEndRecord) == line.npos)
      ids->push_back(strtoull(line.data() + envelope::kId.size(), nullptr, 10));
  }
}

template <typename Take>
void for_each_record(const DeadRing& ring, size_t names, Take take) {
  for (uint64_t i = 0; i < ring.rings(); ++i) {
    DeadRing::Records records = ring.records(i);
    for (uint64_t at = 0; records.size - at >= sizeof(Record);) {
      auto& r = *reinterpret_cast<Record*>(records.data() + at);
      if (!is_sound_record(r, records.size - at, names)) break;
      at += r.size;
      take(r, records.tid);
    }
  }
}

LineFormatter formatter_of(const DeadRing& ring, const std::vector<std::pair<std::string, std::string>>& names) {
  const FileHeader& h = ring.header();
  LineFormatter lines;
  lines.setup(h.pid, h.host_hash, h.inc_metadata, h.disable_tids, [&names](uint32_t n) {
    return n < names.size() ? names[n] : std::pair<std::string, std::string>{"?", "?"};
  });
  return lines;
}

Rest take_rest(const DeadRing& ring) {
  const FileHeader& h = ring.header();
  Rest rest;
  if ((h.commit.load() & 3) == kCompacting) {
    rest.text = ring.spool();
    add_facts(rest.text, &rest.facts);
  }
  ClockMap clock;
  clock.start(h.first_anchor, h.first_anchor.mono_ns + h.epoch_offset, h.cpu_ticks);
  clock.add(h.last_anchor);
  // The same counter: now is as good an anchor as any.
  if (ring.same_boot() && bool(h.cpu_ticks) == g_cpu_ticks) clock.add(take_anchor());
  auto names = ring.names();
  LineFormatter lines = formatter_of(ring, names);
  rest.next_id = h.next_id.load();
  for_each_record(ring, names.size(), [&](Record& r, int64_t tid) {
    if (r.flags & kOnHeap) {
      ++rest.lost;
      return;
    }
    if (r.id == kNumberedLater) r.id = rest.next_id++;
    size_t used = rest.text.size();
    rest.text.resize(used + lines.bound(r));
    LineFormatter::Line line;
    char* end = lines.write(r, tid, clock, rest.text.data() + used, &line);
    rest.text.resize(size_t(end - rest.text.data()));
    rest.facts.count(line.ts);
    ++rest.records;
  });
  rest.last_ts = rest.facts.last_ts ? rest.facts.last_ts : clock.to_epoch_us(h.last_anchor.ticks);
  return rest;
}

// The last lines; `before`: lines of the file that come before the rest.
void close_text(const DeadRing& ring, uint64_t before, Rest* rest) {
  const FileHeader& h = ring.header();
  std::vector<std::pair<std::string, std::string>> no_names;
  LineFormatter lines = formatter_of(ring, no_names);
  uint64_t dropped = rest->lost;
  for (auto& d : h.dropped) dropped += d.load();
  std::string args;
  append_arg(args, "num_events", int64_t(before + rest->facts.lines - 1));  // less the bracket
  append_key(args, "recovered");
  args += "true";
  append_arg(args, "recovered_events", int64_t(rest->records));
  append_arg(args, "dropped", int64_t(dropped));
  if (rest->lost) append_arg(args, "dropped_large", int64_t(rest->lost));
  rest->text += lines.event_line(rest->next_id, int64_t(h.pid), envelope::kEndOfTrace, rest->last_ts, args);
  rest->text += envelope::kLastLine;
  rest->facts.count(rest->last_ts);
  rest->facts.count(0);  // the bracket
}

std::string read_at(int fd, uint64_t offset, size_t size) {
  std::string out(size, '\0');
  out.resize(read_fully(fd, out.data(), size, offset));
  return out;
}

// The lines of the file up to `size`; false if no record ends there.
bool lines_before(int fd, uint64_t size, bool compressed, uint64_t* lines) {
  *lines = 0;
  if (compressed) {
    uint64_t at = 0;
    while (at < size) {
      std::optional<MemberIndex> index = read_member_index(read_at(fd, at, kMemberHeaderSize));
      if (!index) break;
      *lines += index->facts.lines;
      at += index->member_size;
    }
    return at == size;
  }
  constexpr size_t kPiece = 1 << 20;
  bool ended = true;
  for (uint64_t at = 0; at < size; at += kPiece) {
    std::string piece = read_at(fd, at, size_t(std::min<uint64_t>(kPiece, size - at)));
    *lines += uint64_t(std::count(piece.begin(), piece.end(), '\n'));
    ended = piece.ends_with('\n');
  }
  return ended;
}

bool is_whole_member(std::string_view bytes, const MemberIndex& index, std::string_view text) {
  if (index.member_size > bytes.size() || text.size() != index.text_size) return false;
  const char* trailer = bytes.data() + index.member_size - kMemberTrailerSize;
  return trailer_matches(reinterpret_cast<const uint8_t*>(trailer), text);
}

// The events of the file from `size` on, which completing it truncates; false if that is not known.
bool events_after(int fd, uint64_t size, uint64_t file_size, bool compressed, std::vector<uint64_t>* ids) {
  if (file_size - size > kLargestMember) return false;
  std::string tail = read_at(fd, size, file_size - size);
  if (!compressed) {
    add_event_ids(tail, ids);
    return true;
  }
  std::string_view left = tail;
  while (std::optional<MemberIndex> index = read_member_index(left)) {
    if (index->text_size > kLargestMember) return false;
    std::string text = first_member_text(left, index->text_size);
    // One that was being written when the process died was never committed, and the ring still has all of it.
    if (is_whole_member(left, *index, text)) add_event_ids(text, ids);
    left.remove_prefix(std::min<size_t>(index->member_size, left.size()));
  }
  return true;
}

// Whether the ring has everything the file has from `size` on. It cannot have payloads from the dead process's heap.
bool holds_the_tail(int fd, uint64_t size, uint64_t file_size, bool compressed, const Rest& rest) {
  std::vector<uint64_t> there, held;
  if (!events_after(fd, size, file_size, compressed, &there)) return false;
  add_event_ids(rest.text, &held);
  std::sort(held.begin(), held.end());
  auto missing = [&](uint64_t id) { return !std::binary_search(held.begin(), held.end(), id); };
  return uint64_t(std::count_if(there.begin(), there.end(), missing)) <= rest.lost;
}

// The file has no trace data yet, or the process was killed during its first write.
bool is_first_write(std::string_view bytes, const DeadRing& ring) {
  const FileHeader& h = ring.header();
  std::string expected = (h.commit.load() & 3) == kCompacting ? ring.spool() : std::string();
  if (!expected.starts_with("[\n{")) return false;
  if (h.compress && !begins_as_member(bytes)) return false;
  std::string text = h.compress ? first_member_text(bytes, kBeginning) : std::string(bytes);
  constexpr size_t kFirstBytes = 4096;  // of a member, before anything comes out
  if (text.empty()) return bytes.size() < kFirstBytes;
  size_t both = std::min(text.size(), expected.size());
  size_t same =
      size_t(std::mismatch(text.begin(), text.begin() + ptrdiff_t(both), expected.begin()).first - text.begin());
  // Killed while it wrote a longer member over a shorter one, it leaves the beginning of the first and the end of the
  // second: the first record still says whose it is.
  return same == both || (h.compress && same > expected.find('\n', envelope::kFirstLine.size()));
}

// Does the file begin as that process began it?
bool is_its_own(int fd, const DeadRing& ring, uint64_t size) {
  const FileHeader& h = ring.header();
  std::string bytes = read_at(fd, 0, kBeginning);
  if (size == 0) return bytes.empty() || is_first_write(bytes, ring);
  if (h.compress && !begins_as_member(bytes)) return false;
  std::string text = h.compress ? first_member_text(bytes, kBeginning) : bytes;
  size_t at = text.find(envelope::kStartRecord);
  std::string start(envelope::kStartRecord);
  start += envelope::kPid;
  append_int(start, int64_t(h.pid));
  start += envelope::kTid;
  append_int(start, int64_t(h.pid));
  start += envelope::kTs;
  append_int(start, int64_t((h.first_anchor.mono_ns + h.epoch_offset) / 1000));
  start += ',';
  return text.starts_with(envelope::kFirstLine) && text.compare(envelope::kFirstLine.size(), 1, "{") == 0 &&
         at != text.npos && text.compare(at, start.size(), start) == 0;
}

bool is_file_of_ours(const struct stat& st) { return S_ISREG(st.st_mode) && st.st_uid == geteuid(); }

// A regular file of this user, or -1 with errno set. A link is never followed to it.
int open_trace(const std::string& path, int flags) {
  struct stat st;
  if (!(flags & O_CREAT) && lstat(path.c_str(), &st) != 0) return -1;
  if (!(flags & O_CREAT) && !is_file_of_ours(st)) {
    errno = EPERM;
    return -1;
  }
  int fd = open(path.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
  if (fd >= 0 && (fstat(fd, &st) != 0 || !is_file_of_ours(st))) {
    close(fd);
    errno = EPERM;
    return -1;
  }
  return fd;
}

bool write_rest(int fd, uint64_t size, std::string_view bytes) {
  QuietWrites quiet;
  if (ftruncate(fd, off_t(size)) != 0) return false;
  for (uint64_t at = size; !bytes.empty();) {
    ssize_t n = pwrite(fd, bytes.data(), bytes.size(), off_t(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      int error = n < 0 ? errno : ENOSPC;
      if (ftruncate(fd, off_t(size)) == 0) errno = error;
      return false;
    }
    bytes.remove_prefix(size_t(n));
    at += uint64_t(n);
  }
  return true;
}

Completion kept(const std::string& why) { return {Completion::kKept, why, 0}; }

Completion append(int fd, const DeadRing& ring, uint64_t size, Rest& rest) {
  const FileHeader& h = ring.header();
  struct stat st;
  if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return kept("a running process has its trace open");
  if (fstat(fd, &st) != 0) return kept(strerror(errno));
  uint64_t before = 0;
  // A size beyond the end of the file, or where no record ends, was never committed.
  if (size > uint64_t(st.st_size) || !is_its_own(fd, ring, size) || !lines_before(fd, size, h.compress, &before))
    return kept("the file of that name is not the trace it belongs to");
  if (!holds_the_tail(fd, size, uint64_t(st.st_size), h.compress, rest))
    return kept("its trace contains more than the ring says");
  close_text(ring, before, &rest);
  Gzip gzip;
  if (!write_rest(fd, size, h.compress ? gzip.member(rest.text, rest.facts) : std::string_view(rest.text)))
    return kept(strerror(errno));
  return {Completion::kCompleted, "", rest.records};
}

}  // namespace

Completion complete_trace(const DeadRing& ring, const std::string& path) {
  const FileHeader& h = ring.header();
  uint64_t commit = h.commit.load();
  uint64_t state = commit & 3;
  uint64_t size = committed_size(commit);
  Rest rest = take_rest(ring);
  if (size && size == h.closed_at.load() && (state == kIdle || state == kCommitted)) {
    if (rest.empty()) return {Completion::kNothingToDo, "", 0};
    size = h.closed_from.load();  // it closed one part and died before the next began
  }
  struct stat st;
  bool there = lstat(path.c_str(), &st) == 0;
  // What it wrote is gone with its trace; there was nothing else, or nothing at all.
  if (!there && errno == ENOENT && rest.empty() && (size == 0 || state != kCompacting))
    return {Completion::kNothingToDo, "", 0};
  int fd = open_trace(path, O_RDWR | (!there && size == 0 ? O_CREAT | O_EXCL : 0));
  if (fd < 0) return kept(errno == ENOENT ? "its trace does not exist" : std::string("its trace: ") + strerror(errno));
  Completion done = append(fd, ring, size, rest);
  close(fd);
  return done;
}

Completion write_apart(const DeadRing& ring, const std::string& path) {
  Rest rest = take_rest(ring);
  if (!rest.text.starts_with(envelope::kFirstLine)) {
    rest.text.insert(0, envelope::kFirstLine);
    rest.facts.count(0);
  }
  close_text(ring, 0, &rest);
  int fd = open_trace(path, O_RDWR | O_CREAT | O_EXCL);
  if (fd < 0) return kept(path + ": " + strerror(errno));
  Gzip gzip;
  std::string_view bytes = ring.header().compress ? gzip.member(rest.text, rest.facts) : std::string_view(rest.text);
  bool written = write_rest(fd, 0, bytes);
  std::string error = written ? "" : strerror(errno);
  close(fd);
  if (!written) unlink(path.c_str());
  return written ? Completion{Completion::kCompleted, "", rest.records} : kept(path + ": " + error);
}

bool is_trace_of(const DeadRing& ring, const std::string& path) {
  uint64_t size = committed_size(ring.header().commit.load());
  int fd = size == 0 ? -1 : open_trace(path, O_RDONLY);
  if (fd < 0) return false;
  struct stat st;
  bool is = fstat(fd, &st) == 0 && size <= uint64_t(st.st_size) && is_its_own(fd, ring, size);
  close(fd);
  return is;
}

RingText text_in(const DeadRing& ring) {
  Rest rest = take_rest(ring);
  return {std::move(rest.text), rest.records, rest.lost};
}

uint64_t records_in(const DeadRing& ring) {
  uint64_t n = 0;
  for_each_record(ring, ring.names().size(), [&n](const Record&, int64_t) { ++n; });
  return n;
}

}  // namespace dft
