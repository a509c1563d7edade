// Completes the trace of a process that died before it could, from the ring file it left.
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>

#include "format/json.hpp"
#include "intercept/io_record.hpp"
#include "record/descriptors.hpp"
#include "record/ring_file.hpp"
#include "record/sanitizer.hpp"
#include "session/session.hpp"
#include "session/session_state.hpp"
#include "write/gzip.hpp"
#include "write/line.hpp"
#include "write/trace_file.hpp"

namespace dft {
namespace {

std::string canonical(const std::string& path) {
  char buf[PATH_MAX];
  return realpath(path.c_str(), buf) ? buf : path;
}

bool is_dead(const FileHeader* h) {
  if (h->pid_namespace != own_pid_namespace()) return false;  // not ours to judge
  return process_start_time(h->pid) != h->pid_start_time;
}

std::vector<std::pair<std::string, std::string>> names_in(const FileHeader* h) {
  std::vector<std::pair<std::string, std::string>> out;
  const char* base = reinterpret_cast<const char*>(h) + h->names_offset;
  uint64_t used = h->names_used.load();
  for (uint64_t at = 0; at + 8 <= used;) {
    uint32_t sizes[2];
    memcpy(sizes, base + at, 8);
    uint64_t text = uint64_t(sizes[0]) + sizes[1];
    if (text > used - at - 8) break;
    uint64_t need = 8 + round8(text);
    out.emplace_back(std::string(base + at + 8, sizes[0]), std::string(base + at + 8 + sizes[0], sizes[1]));
    at += need;
  }
  return out;
}

struct Rest {
  std::string text;
  MemberFacts facts;
  uint64_t records = 0;
  uint64_t lost = 0;  // payloads that lived on the dead process's heap
};

// Sizes that fit into each other: the formatter relies on them, and a damaged file may hold others.
bool is_sound(const Record& r, uint64_t room, size_t names) {
  if (r.size % 8 || r.size > room || r.size < sizeof(Record) || r.payload_size > r.size - sizeof(Record)) return false;
  if (r.flags & kOnHeap) return true;
  if (r.kind == Kind::kSpan) return r.name < names;
  if (r.kind == Kind::kIo) {
    IoPayload io;
    if (r.name >= names || r.payload_size < sizeof io) return false;
    memcpy(&io, r.payload(), sizeof io);
    return r.payload_size >= sizeof io + io.values * sizeof(int64_t);
  }
  if (r.kind != Kind::kEvent && r.kind != Kind::kMetadata && r.kind != Kind::kCounter) return false;
  Strings s;
  if (r.payload_size < sizeof s) return false;
  memcpy(&s, r.payload(), sizeof s);
  return uint64_t(s.first_size) + s.second_size <= r.payload_size - sizeof s;
}

void take_ring(const MappedRing& ring, bool committed, size_t names, LineFormatter& lines, const ClockMap& clock,
               Rest* rest) {
  uint64_t head = ring.header->head.load();
  uint64_t at = committed ? ring.header->pending.load() : ring.header->tail.load();
  if (head - at > ring.capacity || at % 8) return;
  int64_t tid = ring.header->tid.load();
  while (at < head) {
    const auto& r = *reinterpret_cast<const Record*>(ring.data + (at & (ring.capacity - 1)));
    if (head - at < sizeof(Record) || !is_sound(r, head - at, names)) return;
    at += r.size;
    if (r.flags & kOnHeap) {
      ++rest->lost;
      continue;
    }
    size_t used = rest->text.size();
    rest->text.resize(used + lines.bound(r));
    LineFormatter::Line line;
    char* end = lines.write(r, tid, clock, rest->text.data() + used, &line);
    rest->text.resize(size_t(end - rest->text.data()));
    rest->facts.count(line.ts);
    ++rest->records;
  }
}

// The facts of text that the dead process had formatted already.
void add_facts(std::string_view text, MemberFacts* facts) {
  while (!text.empty()) {
    size_t n = std::min(text.find('\n'), text.size() - 1) + 1;
    std::string_view line = text.substr(0, n);
    // A quote inside a string is escaped, and a record's own time comes before its args: this is it.
    size_t at = line.find(",\"ts\":");
    facts->count(at == line.npos ? 0 : strtoull(line.data() + at + 6, nullptr, 10));
    text.remove_prefix(n);
  }
}

std::string read_at(int fd, uint64_t offset, size_t size) {
  std::string out(size, '\0');
  size_t done = 0;
  while (done < size) {
    ssize_t n = pread(fd, out.data() + done, size - done, off_t(offset + done));
    if (n <= 0) break;
    done += size_t(n);
  }
  out.resize(done);
  return out;
}

uint64_t lines_before(int fd, uint64_t size, bool compressed) {
  uint64_t lines = 0;
  if (compressed) {
    for (uint64_t at = 0; at < size;) {
      std::optional<MemberIndex> index = read_member_index(read_at(fd, at, kMemberHeaderSize));
      if (!index) break;
      lines += index->facts.lines;
      at += index->member_size;
    }
    return lines;
  }
  constexpr size_t kPiece = 1 << 20;
  for (uint64_t at = 0; at < size; at += kPiece) {
    std::string piece = read_at(fd, at, size_t(std::min<uint64_t>(kPiece, size - at)));
    lines += uint64_t(std::count(piece.begin(), piece.end(), '\n'));
  }
  return lines;
}

// Whether the file is still the one that the dead process wrote: by now a later run may have its name.
bool still_its_own(int fd, const FileHeader* h, uint64_t size) {
  constexpr size_t kEnough = 4 << 20;
  std::string text = read_at(fd, 0, kEnough);
  if (h->compress) text = first_member_text(text, kEnough);
  std::string start = "\"name\":\"start\",\"cat\":\"dftracer\",\"pid\":";
  size_t any = text.find(start);
  if (any == text.npos) return size == 0;  // it was killed at its first write
  start += std::to_string(h->pid) + ",\"tid\":" + std::to_string(h->pid) +
           ",\"ts\":" + std::to_string((h->first_anchor.mono_ns + h->epoch_offset) / 1000) + ",";
  // Killed at its first write, the line may be cut anywhere.
  std::string_view found = std::string_view(text).substr(any, start.size());
  return start.starts_with(found) && (found.size() == start.size() || size == 0);
}

bool write_rest(int fd, uint64_t size, std::string_view bytes) {
  if (ftruncate(fd, off_t(size)) != 0) return false;
  while (!bytes.empty()) {
    ssize_t n = pwrite(fd, bytes.data(), bytes.size(), off_t(size));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(size_t(n));
    size += uint64_t(n);
  }
  return true;
}

// It may have died while its file changed from one name to the other.
std::string current_path(const FileHeader* h) {
  const char* other = h->trace_path() == h->path[0] ? h->path[1] : h->path[0];
  bool gone = access(h->trace_path(), F_OK) != 0 && errno == ENOENT;
  return gone && *other && access(other, F_OK) == 0 ? other : h->trace_path();
}

enum class Outcome { kLater, kNothingToDo, kCompleted };

Outcome append_to_trace(const FileHeader* h, uint64_t size, Rest& rest, const LineFormatter& lines, uint64_t last_ts) {
  // A file that was there and is gone has been removed by someone who did not want it.
  int fd = open(current_path(h).c_str(), O_RDWR | O_CLOEXEC | (size == 0 ? O_CREAT : 0), 0666);
  if (fd < 0) return errno == ENOENT && size ? Outcome::kNothingToDo : Outcome::kLater;
  Outcome outcome = Outcome::kLater;
  struct stat st;
  // A file system without locks has nobody to wait for.
  bool ours = flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
  if (ours && fstat(fd, &st) == 0) {
    // A size beyond the file's is no size that was ever committed.
    if (size > uint64_t(st.st_size) || !still_its_own(fd, h, size)) {
      outcome = Outcome::kNothingToDo;
    } else {
      uint64_t before = lines_before(fd, size, h->compress) + rest.facts.lines;
      uint64_t id = h->next_id.load();
      std::string args = ",\"num_events\":";
      append_int(args, int64_t(before - 1));  // less the bracket
      args += ",\"recovered\":true,\"recovered_events\":";
      append_int(args, int64_t(rest.records));
      args += ",\"dropped\":";
      uint64_t dropped = rest.lost;
      for (auto& d : h->dropped) dropped += d.load();
      append_int(args, int64_t(dropped));
      if (rest.lost) {
        args += ",\"dropped_large\":";
        append_int(args, int64_t(rest.lost));
      }
      rest.text += lines.event_line(id, int64_t(h->pid), "end", last_ts, args) + "]\n";
      rest.facts.count(last_ts);
      rest.facts.count(0);  // the bracket
      Gzip gzip;
      if (write_rest(fd, size, h->compress ? gzip.member(rest.text, rest.facts) : std::string_view(rest.text)))
        outcome = Outcome::kCompleted;
    }
  }
  close(fd);
  return outcome;
}

Outcome complete(RingFile& file) {
  FileHeader* h = file.header();
  uint64_t commit = h->commit.load();
  uint64_t state = commit & 3;
  uint64_t size = committed_size(commit);
  Rest rest;
  if (state == kCompacting) {
    rest.text.assign(file.spool(), h->spool_size.load());
    add_facts(rest.text, &rest.facts);
  }
  ClockMap clock;
  clock.start(h->first_anchor, h->first_anchor.mono_ns + h->epoch_offset);
  clock.add(h->last_anchor);
  clock.add(take_anchor());  // same boot, same counter: now is as good an anchor as any
  auto names = names_in(h);
  LineFormatter lines;
  lines.setup(h->pid, h->host_hash, h->inc_metadata, h->disable_tids,
              [&](uint32_t n) { return n < names.size() ? names[n] : std::pair<std::string, std::string>{"?", "?"}; });
  for (uint64_t i = 0; i < h->ring_count.load(); ++i) {
    MappedRing ring = file.map_ring(i);
    if (!ring.header) continue;
    take_ring(ring, state == kCommitted, names.size(), lines, clock, &rest);
    file.unmap_ring(ring);
  }
  bool nothing_left = rest.records == 0 && rest.lost == 0;
  if (size && size == h->closed_at.load() && (state == kIdle || state == kCommitted)) {
    if (nothing_left) return Outcome::kNothingToDo;
    size = h->closed_from.load();  // it closed one part and died before the next began
  }
  if (size == 0 && nothing_left && access(h->trace_path(), F_OK) != 0) return Outcome::kNothingToDo;
  uint64_t last = rest.facts.last_ts;
  if (last == 0) last = clock.to_epoch_ns(h->last_anchor.ticks) / 1000;
  return append_to_trace(h, size, rest, lines, last);
}

std::vector<std::string> ring_files_in(const std::string& place) {
  std::vector<std::string> found;
  DIR* dir = opendir(place.c_str());
  if (!dir) return found;
  while (dirent* entry = readdir(dir)) {
    std::string name = entry->d_name;
    if (name.starts_with("dftracer-") && name.ends_with(".ring")) found.push_back(place + "/" + name);
  }
  closedir(dir);
  return found;
}

// One reader completes a trace; another that wants the same waits until it is done.
bool lock_patiently(int fd) {
  for (int i = 0; i < 1000; ++i) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK) return true;  // no locks here: what is read back is checked in any case
    usleep(2000);
  }
  return false;
}

// Calls `handle`, holding its lock, for every ring file of a dead process that `wants` it.
template <typename Wants, typename Handle>
void for_each_dead(const std::string& place, Wants wants, Handle handle) {
  for (const auto& path : ring_files_in(place)) {
    try {
      RingFile file;
      if (!file.open_existing(path) || !is_dead(file.header()) || !wants(*file.header())) continue;
      int lock = open(path.c_str(), O_RDONLY | O_CLOEXEC);
      if (lock < 0) continue;
      if (lock_patiently(lock) && access(path.c_str(), F_OK) == 0) handle(file);
      close(lock);
    } catch (...) {
      // Out of memory at worst; the program that is being traced must not end by another one's ring.
    }
  }
}

}  // namespace

namespace {

void* drop_lost_rings_now(void*) {
  auto lost = [](const FileHeader& h) {
    return access(directory_of(h.trace_path()).c_str(), F_OK) != 0 && errno == ENOENT;
  };
  for_each_dead(kSharedMemory, lost, [](RingFile& file) { file.unlink_file(); });
  return nullptr;
}

void* drop_lost_rings_apart(void*) {
  ++tls_io_off;
  return unshare_fd_table() ? drop_lost_rings_now(nullptr) : nullptr;
}

std::vector<std::string> ring_places(const std::string& directory) {
  std::vector<std::string> places{kSharedMemory, directory};
  if (!settings().ring_dir.empty()) places.push_back(settings().ring_dir);
  return places;
}

}  // namespace

// In a thread with descriptors of its own: it opens many, and the program may close and reuse any number meanwhile.
void drop_lost_rings() {
  if (any_sanitizer()) {  // where another thread would keep forked children from being recorded
    drop_lost_rings_now(nullptr);
    return;
  }
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  pthread_create(&thread, &attr, drop_lost_rings_apart, nullptr);
  pthread_attr_destroy(&attr);
}

std::vector<std::string> recover_directory(const std::string& directory) {
  std::vector<std::string> done;
  init_clock();
  std::string wanted = canonical(directory);
  auto here = [&](const FileHeader& h) { return canonical(directory_of(h.trace_path())) == wanted; };
  for (const auto& place : ring_places(wanted)) {
    for_each_dead(place, here, [&](RingFile& file) {
      Outcome outcome = complete(file);
      if (outcome == Outcome::kCompleted) done.push_back(file.header()->trace_path());
      if (outcome != Outcome::kLater) file.unlink_file();
    });
  }
  return done;
}

bool complete_trace(const std::string& path) {
  std::string directory = canonical(directory_of(path)), wanted = canonical(path);
  recover_directory(directory);
  bool waiting = false;
  auto look = [&](const FileHeader& h) {
    waiting |= canonical(h.trace_path()) == wanted;
    return false;
  };
  for (const auto& place : ring_places(directory)) for_each_dead(place, look, [](RingFile&) {});
  return !waiting;
}

}  // namespace dft
