#include "record/ring_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "record/names.hpp"
#include "record/process_life.hpp"
#include "record/quiet_writes.hpp"
#include "record/ring_place.hpp"

namespace dft {
namespace {

constexpr uint64_t kAllReserved = ~uint64_t(0);
constexpr uint64_t kNoFile = ~uint64_t(0);
constexpr uint64_t kNamesCapacity = 256 * 1024, kFirstNames = 32 * 1024;

uint64_t page_round(uint64_t n) { return (n + kPage - 1) & ~(kPage - 1); }

bool reserve_blocks(int fd, uint64_t offset, uint64_t size) {
  // Reserved, not sparse: a full file system must show here and not as SIGBUS in the traced program.
  QuietWrites quiet;
  int rc;
  do rc = posix_fallocate(fd, off_t(offset), off_t(size));
  while (rc == EINTR);
  return rc == 0;
}

// A thread that was about to take an id may be held up for any time: what it adds to stays memory, though nobody reads
// it again. The last sessions are enough: a thread does not sleep through eight of them in the middle of a call.
void keep_page(void* page) {
  static std::atomic<void*> kept[8];
  static std::atomic<unsigned> next{0};
  if (void* oldest = kept[next.fetch_add(1) % std::size(kept)].exchange(page)) munmap(oldest, kPage);
}

bool make_size(int fd, uint64_t size) {
  QuietWrites quiet;  // there may be a limit
  return ftruncate(fd, off_t(size)) == 0;
}

}  // namespace

bool RingFile::create_at(const std::string& path, const Layout& layout) {
  int fd = open_high_fd(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
  if (fd < 0) return false;
  struct stat st;
  void* at = MAP_FAILED;
  // Some file systems have no owners and modes: a ring there could be anyone's.
  bool closed = fchmod(fd, 0600) == 0 && fstat(fd, &st) == 0 && is_private_file(st);
  if (closed && make_size(fd, layout.rings) && reserve_blocks(fd, 0, layout.names + kFirstNames) &&
      reserve_blocks(fd, layout.spool, layout.first_spool))
    at = mmap(nullptr, layout.rings, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) {
    close(fd);
    unlink(path.c_str());
    return false;
  }
  device_ = st.st_dev;
  inode_ = st.st_ino;
  fd_.set(fd);
  header_ = static_cast<FileHeader*>(at);
  mapped_ = layout.rings;
  path_ = path;
  link_ring(path);
  return true;
}

bool RingFile::owns_descriptor() const {
  struct stat st;
  int fd = fd_.get();
  return fd >= 0 && fstat(fd, &st) == 0 && uint64_t(st.st_dev) == device_ && uint64_t(st.st_ino) == inode_;
}

// Another thread's table may have it, or the program closed our descriptor (os.closerange, daemonising) and may have
// reused the number for its own file.
bool RingFile::reopen_if_missing() {
  if (owns_descriptor()) return true;
  int fd = open_high_fd(path_.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return false;
  fd_.set(fd);
  return owns_descriptor();
}

bool RingFile::create_in_memory(uint64_t first_size) {
  void* at = mmap(nullptr, first_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return false;
  header_ = static_cast<FileHeader*>(at);
  mapped_ = first_size;
  return true;
}

bool RingFile::create(const std::vector<std::string>& directories, const std::string& name, uint64_t ring_capacity,
                      uint64_t spool_capacity, uint64_t first_spool) {
  Layout layout{};
  layout.names = page_round(sizeof(FileHeader));
  layout.spool = layout.names + kNamesCapacity;
  layout.rings = layout.spool + page_round(spool_capacity);
  layout.first_spool = std::min(page_round(first_spool), page_round(spool_capacity));
  bool made = false;
  for (const auto& directory : directories)
    if ((made = create_at(directory + "/" + name, layout))) break;
  if (!made && !create_in_memory(layout.rings)) return false;
  FileHeader* h = header_;
  h->layout = ring_layout();
  h->pid = uint32_t(getpid());
  h->pid_start_time = process_start_time(h->pid);
  h->pid_namespace = own_pid_namespace();
  h->boot = own_boot();
  h->ring_capacity = ring_capacity;
  h->names_offset = layout.names;
  h->names_capacity = made ? kFirstNames : kNamesCapacity;
  h->spool_offset = layout.spool;
  h->spool_capacity = made ? layout.first_spool : page_round(spool_capacity);
  h->rings_offset = layout.rings;
  h->next_id.store(1);
  return true;
}

void RingFile::reserve_rest() {
  FileHeader* h = header_;
  uint64_t whole = h->rings_offset - h->spool_offset;
  if (path_.empty() || h->spool_capacity == whole) return;
  if (!reopen_if_missing() || !reserve_blocks(fd_.get(), h->names_offset, h->rings_offset - h->names_offset)) return;
  h->spool_capacity = whole;
  std::lock_guard lock(names_mutex());
  h->names_capacity = kNamesCapacity;
}

// At `offset` of the file, or in anonymous memory.
MappedRing RingFile::map_ring(uint64_t offset) const {
  constexpr int kBoth = PROT_READ | PROT_WRITE;
  uint64_t capacity = header_->ring_capacity;
  auto* base = static_cast<uint8_t*>(
      mmap(nullptr, kPage + 2 * capacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (base == MAP_FAILED) return {};
  uint8_t* again = base + kPage + capacity;
  void *first, *second = MAP_FAILED;
  if (offset == kNoFile) {
    first = mmap(base, kPage + capacity, kBoth, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    // An old size of 0 makes a second mapping of the same shared pages.
    if (first != MAP_FAILED) second = mremap(base + kPage, 0, capacity, MREMAP_MAYMOVE | MREMAP_FIXED, again);
  } else {
    first = mmap(base, kPage + capacity, kBoth, MAP_SHARED | MAP_FIXED, fd_.get(), off_t(offset));
    second = mmap(again, capacity, kBoth, MAP_SHARED | MAP_FIXED, fd_.get(), off_t(offset + kPage));
  }
  if (first == MAP_FAILED || second == MAP_FAILED) {
    munmap(base, kPage + 2 * capacity);
    return {};
  }
  return {reinterpret_cast<RingHeader*>(base), base + kPage, capacity};
}

bool RingFile::add_private_ring(MappedRing* out) {
  MappedRing ring = map_ring(kNoFile);
  if (!ring.header) return false;
  ring.header->reserved.store(kAllReserved, std::memory_order_relaxed);
  private_ring_.store(true, std::memory_order_relaxed);
  *out = ring;
  return true;
}

bool RingFile::add_ring(MappedRing* out) {
  if (path_.empty()) return add_private_ring(out);
  uint64_t index = header_->ring_count.load(std::memory_order_relaxed);
  uint64_t capacity = header_->ring_capacity;
  uint64_t offset = header_->rings_offset + index * (kPage + capacity);
  uint64_t piece = std::min(capacity, kFirstRingPiece);
  // Its last page gives the file its size; everything between is a hole until the ring gets there.
  if (!reopen_if_missing() || !reserve_blocks(fd_.get(), offset + capacity, kPage)) return false;
  if (fallocate(fd_.get(), 0, off_t(offset), off_t(kPage + piece)) != 0) {
    // A file system that cannot do this at once cannot do it in pieces either, while a thread is already writing.
    piece = capacity;
    if (!reserve_blocks(fd_.get(), offset, kPage + capacity)) return false;
  }
  MappedRing ring = map_ring(offset);
  if (!ring.header) return false;
  ring.header->offset = offset + kPage;
  ring.header->reserved.store(piece == capacity ? kAllReserved : piece, std::memory_order_relaxed);
  header_->ring_count.store(index + 1, std::memory_order_release);
  *out = ring;
  return true;
}

bool RingFile::extend(RingHeader* ring, uint64_t upto) {
  uint64_t capacity = header_->ring_capacity;
  uint64_t from = ring->reserved.load(std::memory_order_relaxed);
  upto = std::min(upto, capacity);
  if (from >= upto) return true;
  if (!reopen_if_missing() || fallocate(fd_.get(), 0, off_t(ring->offset + from), off_t(upto - from)) != 0)
    return false;
  uint64_t reached = upto == capacity ? kAllReserved : upto;
  while (from < reached && !ring->reserved.compare_exchange_weak(from, reached, std::memory_order_release)) {
  }
  return true;
}

void RingFile::unlink_file() {
  if (!path_.empty()) unlink_ring(path_);
}

void RingFile::abandon() {
  if (owns_descriptor()) close(fd_.get());
  fd_.forget();
}

void RingFile::unmap_ring(const MappedRing& ring) { munmap(ring.header, kPage + 2 * ring.capacity); }

void RingFile::unmap(const std::vector<MappedRing>& rings) {
  static_assert(offsetof(FileHeader, next_id) + sizeof(FileHeader::next_id) <= kPage);
  for (const auto& r : rings) unmap_ring(r);
  void* first = mmap(header_, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (first == MAP_FAILED) return;  // the file is gone by now, and its pages go with the process
  munmap(reinterpret_cast<uint8_t*>(header_) + kPage, mapped_ - kPage);
  keep_page(first);
  header_ = nullptr;
}

RingFile::~RingFile() {
  if (owns_descriptor()) close(fd_.get());
}

}  // namespace dft
