#include "session/dead_ring.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <ctime>

#include "format/md5.hpp"
#include "record/process_life.hpp"
#include "record/ring_place.hpp"

namespace dft {
namespace {

constexpr uint64_t kLargest = 1 << 30;  // of a ring by its setting, and of anything else in the file

std::string own_host_hash() {
  char host[256] = "unknown";
  gethostname(host, sizeof host - 1);
  return short_hash(host);
}

bool is_hash(const char* text, size_t room) {
  const char* end = static_cast<const char*>(memchr(text, 0, room));
  return end && std::all_of(text, end, [](unsigned char c) { return isxdigit(c); });
}

}  // namespace

size_t read_fully(int fd, void* out, uint64_t size, uint64_t offset) {
  size_t done = 0;
  while (done < size) {
    ssize_t n = pread(fd, static_cast<char*>(out) + done, size - done, off_t(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += size_t(n);
  }
  return done;
}

DeadRing::~DeadRing() {
  if (fd_ >= 0) close(fd_);
}

DeadRing::Opened DeadRing::open(const std::string& path, To purpose) {
  // Checked before it is opened: opening something other than a regular file can have side effects.
  struct stat st;
  if (lstat(path.c_str(), &st) != 0) return Opened::kGone;
  if (!is_private_file(st)) return Opened::kNotOurs;
  int mode = purpose == To::kLook ? O_RDONLY : O_RDWR;
  fd_ = ::open(path.c_str(), mode | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
  if (fd_ < 0) return Opened::kGone;
  if (fstat(fd_, &st) != 0 || !is_private_file(st)) return Opened::kNotOurs;
  path_ = path;
  size_ = uint64_t(st.st_size);
  modified_s_ = st.st_mtime;
  header_ = std::make_unique<FileHeader>();
  size_t got = read_fully(fd_, header_.get(), sizeof(FileHeader), 0);
  constexpr char kNoMagic[8] = {};
  if (memcmp(header_->magic, kNoMagic, 8) == 0) return Opened::kUnfinished;
  if (got < 8 || memcmp(header_->magic, FileHeader::kMagic, 7) != 0) return Opened::kNotARing;
  if (memcmp(header_->magic, FileHeader::kMagic, 8) != 0 || header_->layout != ring_layout())
    return Opened::kOtherVersion;
  return got == sizeof(FileHeader) && is_sound() ? Opened::kYes : Opened::kNotARing;
}

bool DeadRing::read_header() {
  struct stat st;
  if (fstat(fd_, &st) != 0) return false;
  size_ = uint64_t(st.st_size);
  auto now = std::make_unique<FileHeader>();
  if (read_fully(fd_, now.get(), sizeof(FileHeader), 0) != sizeof(FileHeader)) return false;
  bool same = memcmp(now->magic, header_->magic, sizeof now->magic) == 0 && now->layout == header_->layout;
  header_ = std::move(now);
  return same && is_sound();
}

bool DeadRing::is_sound() const {
  const FileHeader* h = header_.get();
  auto within = [this](uint64_t offset, uint64_t size) {
    return size <= kLargest && offset <= size_ && size <= size_ - offset;
  };
  uint64_t capacity = h->ring_capacity, rings = h->ring_count.load();
  if (capacity < kPage || (capacity & (capacity - 1)) || capacity > kLargest || h->rings_offset > size_) return false;
  return rings <= (size_ - h->rings_offset) / (kPage + capacity) && within(h->spool_offset, h->spool_capacity) &&
         within(h->names_offset, h->names_capacity) && h->spool_size.load() <= h->spool_capacity &&
         h->names_used.load() <= h->names_capacity && is_hash(h->host_hash, sizeof h->host_hash) &&
         memchr(h->path[0], 0, sizeof h->path[0]) && memchr(h->path[1], 0, sizeof h->path[1]) &&
         h->trace_path()[0] == '/';
}

std::string DeadRing::trace_path() const {
  // It may have died while its file changed from one name to the other.
  const char* now = header_->trace_path();
  const char* other = now == header_->path[0] ? header_->path[1] : header_->path[0];
  struct stat st;
  bool gone = *other == '/' && lstat(now, &st) != 0 && errno == ENOENT;
  return gone && lstat(other, &st) == 0 ? other : now;
}

bool DeadRing::same_boot() const { return header_->boot == own_boot(); }

DeadRing::Life DeadRing::life() const {
  // No process survives from an earlier boot of this host; nothing is known about another host.
  if (!same_boot()) return own_host_hash() == header_->host_hash ? Life::kDead : Life::kUnknown;
  if (header_->pid_namespace != own_pid_namespace()) return Life::kUnknown;
  return process_start_time(header_->pid) == header_->pid_start_time ? Life::kAlive : Life::kDead;
}

bool DeadRing::was_given_up() const {
  constexpr int64_t kSetUpTakes_s = 10;  // at most, on the slowest of machines
  if (time(nullptr) - modified_s_ < kSetUpTakes_s) return false;
  bool named = header_->layout == ring_layout() && header_->pid != 0 && header_->boot != 0;
  return !named || life() == Life::kDead;
}

DeadRing::Lock DeadRing::lock() {
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return Lock::kBusy;
    // A file system without locks.
    marker_ = std::make_unique<Marker>(path_, "recovering");
    if (!marker_->is_held()) return Lock::kBusy;
  }
  struct stat st;
  return fstat(fd_, &st) == 0 && is_private_file(st) ? Lock::kHeld : Lock::kGone;
}

std::string DeadRing::read(uint64_t offset, uint64_t size) const {
  std::string out(size, '\0');
  out.resize(read_fully(fd_, out.data(), size, offset));
  return out;
}

std::string DeadRing::spool() const {
  std::string text = read(header_->spool_offset, header_->spool_size.load());
  text.resize(text.rfind('\n') + 1);
  return text;
}

std::vector<std::pair<std::string, std::string>> DeadRing::names() const {
  std::vector<std::pair<std::string, std::string>> out;
  std::string all = read(header_->names_offset, header_->names_used.load());
  for (uint64_t at = 0; at + 8 <= all.size();) {
    uint32_t sizes[2];
    memcpy(sizes, all.data() + at, 8);
    uint64_t text = uint64_t(sizes[0]) + sizes[1];
    if (text > all.size() - at - 8) break;
    out.emplace_back(all.substr(at + 8, sizes[0]), all.substr(at + 8 + sizes[0], sizes[1]));
    at += 8 + ((text + 7) & ~uint64_t(7));
  }
  return out;
}

DeadRing::Records DeadRing::records(uint64_t ring) const {
  uint64_t capacity = header_->ring_capacity;
  uint64_t offset = header_->rings_offset + ring * (kPage + capacity);
  Records out;
  RingHeader h{};
  if (read_fully(fd_, static_cast<void*>(&h), sizeof h, offset) != sizeof h) return out;
  uint64_t head = h.head.load();
  uint64_t from = (header_->commit.load() & 3) == kCommitted ? h.pending.load() : h.tail.load();
  if (from > head || head - from > capacity || from % 8 || head % 8) return out;
  out.tid = h.tid.load();
  out.size = head - from;
  out.room.resize(out.size / 8);
  uint64_t at = from & (capacity - 1), first = std::min(out.size, capacity - at);
  auto* to = reinterpret_cast<char*>(out.room.data());
  size_t got = read_fully(fd_, to, first, offset + kPage + at);
  if (got == first && first < out.size) got += read_fully(fd_, to + first, out.size - first, offset + kPage);
  out.size = got & ~uint64_t(7);
  return out;
}

bool is_sound_record(const Record& r, uint64_t room, size_t names) {
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

}  // namespace dft
