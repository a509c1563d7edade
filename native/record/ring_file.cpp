#include "record/ring_file.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "record/descriptors.hpp"

namespace dft {
namespace {

constexpr uint64_t kAllReserved = ~uint64_t(0);
constexpr uint64_t kNamesCapacity = 256 * 1024;
// A smaller tmpfs (containers get 64 MiB) belongs to the DataLoader's shared tensors.
constexpr uint64_t kEnoughSharedMemory = 512ull << 20;

uint64_t page_round(uint64_t n) { return (n + kPage - 1) & ~(kPage - 1); }

// A limit on file sizes must not kill the traced program on our account.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal() {
    sigemptyset(&only_);
    sigaddset(&only_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &only_, &before_);
    sigset_t pending;
    was_pending_ = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ);
  }
  ~NoFileSizeSignal() {
    timespec now{0, 0};
    if (!was_pending_) sigtimedwait(&only_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;
  NoFileSizeSignal& operator=(const NoFileSizeSignal&) = delete;

 private:
  sigset_t only_, before_;
  bool was_pending_;
};

bool reserve_blocks(int fd, uint64_t offset, uint64_t size) {
  // Reserved, not sparse: a full file system must show here and not as SIGBUS in the traced program.
  NoFileSizeSignal quiet;
  int rc;
  do rc = posix_fallocate(fd, off_t(offset), off_t(size));
  while (rc == EINTR);
  return rc == 0;
}

}  // namespace

bool RingFile::create_at(const std::string& path, uint64_t first_size) {
  int fd = open_high_fd(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (fd < 0) return false;
  void* at = MAP_FAILED;
  if (reserve_blocks(fd, 0, first_size)) at = mmap(nullptr, first_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) {
    close(fd);
    unlink(path.c_str());
    return false;
  }
  struct stat st;
  if (fstat(fd, &st) == 0) {
    device_ = st.st_dev;
    inode_ = st.st_ino;
  }
  fd_ = fd;
  header_ = static_cast<FileHeader*>(at);
  mapped_ = first_size;
  path_ = path;
  return true;
}

bool RingFile::owns_descriptor() const {
  struct stat st;
  return fd_ >= 0 && fstat(fd_, &st) == 0 && uint64_t(st.st_dev) == device_ && uint64_t(st.st_ino) == inode_;
}

// The program may have closed our descriptor (os.closerange, daemonising), and the number be its own file by now.
bool RingFile::reopen_if_stolen() {
  if (owns_descriptor()) return true;
  int fd = open_high_fd(path_.c_str(), O_RDWR);
  if (fd < 0) return false;
  fd_ = fd;
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
                      uint64_t spool_capacity) {
  uint64_t names_offset = page_round(sizeof(FileHeader));
  uint64_t spool_offset = names_offset + kNamesCapacity;
  uint64_t rings_offset = spool_offset + page_round(spool_capacity);
  bool made = false;
  for (const auto& directory : directories)
    if ((made = create_at(directory + "/" + name, rings_offset))) break;
  if (!made && !create_in_memory(rings_offset)) return false;
  FileHeader* h = header_;
  h->layout = ring_layout();
  h->pid = uint32_t(getpid());
  h->pid_start_time = process_start_time(h->pid);
  h->pid_namespace = own_pid_namespace();
  h->ring_capacity = ring_capacity;
  h->names_offset = names_offset;
  h->names_capacity = kNamesCapacity;
  h->spool_offset = spool_offset;
  h->spool_capacity = page_round(spool_capacity);
  h->rings_offset = rings_offset;
  h->next_id.store(1);
  return true;
}

bool RingFile::open_existing(const std::string& path) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  struct stat st;
  FileHeader* h = nullptr;
  if (fstat(fd, &st) == 0 && st.st_size > off_t(sizeof(FileHeader))) {
    void* at = mmap(nullptr, size_t(st.st_size), PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    if (at != MAP_FAILED) h = static_cast<FileHeader*>(at);
  }
  if (!h) {
    close(fd);
    return false;
  }
  header_ = h;
  mapped_ = uint64_t(st.st_size);
  fd_ = fd;
  device_ = st.st_dev;
  inode_ = st.st_ino;
  reading_ = true;
  path_ = path;
  return is_sound();
}

// It is a file like any other, and may hold anything.
bool RingFile::is_sound() const {
  const FileHeader* h = header_;
  auto within = [this](uint64_t offset, uint64_t size) { return offset <= mapped_ && size <= mapped_ - offset; };
  if (memcmp(h->magic, FileHeader::kMagic, 8) != 0 || h->layout != ring_layout()) return false;
  uint64_t capacity = h->ring_capacity;
  if (capacity < kPage || (capacity & (capacity - 1)) || capacity > mapped_ || h->rings_offset % kPage) return false;
  uint64_t rings = h->ring_count.load();
  return rings <= mapped_ / (kPage + capacity) && within(h->rings_offset, rings * (kPage + capacity)) &&
         within(h->spool_offset, h->spool_capacity) && within(h->names_offset, h->names_capacity) &&
         h->spool_size.load() <= h->spool_capacity && h->names_used.load() <= h->names_capacity &&
         memchr(h->host_hash, 0, sizeof h->host_hash) && memchr(h->path[0], 0, sizeof h->path[0]) &&
         memchr(h->path[1], 0, sizeof h->path[1]);
}

MappedRing RingFile::map_ring(uint64_t index) {
  uint64_t capacity = header_->ring_capacity;
  off_t offset = off_t(header_->rings_offset + index * (kPage + capacity));
  int protection = reading_ ? PROT_READ : PROT_READ | PROT_WRITE;
  auto* base = static_cast<uint8_t*>(
      mmap(nullptr, kPage + 2 * capacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (base == MAP_FAILED) return {};
  uint8_t* again = base + kPage + capacity;
  void *first, *second = MAP_FAILED;
  if (fd_ < 0) {
    first = mmap(base, kPage + capacity, protection, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    // An old size of 0 makes a second mapping of the same shared pages.
    if (first != MAP_FAILED) second = mremap(base + kPage, 0, capacity, MREMAP_MAYMOVE | MREMAP_FIXED, again);
  } else {
    first = mmap(base, kPage + capacity, protection, MAP_SHARED | MAP_FIXED, fd_, offset);
    second = mmap(again, capacity, protection, MAP_SHARED | MAP_FIXED, fd_, offset + off_t(kPage));
  }
  if (first == MAP_FAILED || second == MAP_FAILED) {
    munmap(base, kPage + 2 * capacity);
    return {};
  }
  return {reinterpret_cast<RingHeader*>(base), base + kPage, capacity};
}

bool RingFile::add_ring(MappedRing* out) {
  uint64_t index = header_->ring_count.load(std::memory_order_relaxed);
  uint64_t capacity = header_->ring_capacity;
  uint64_t offset = header_->rings_offset + index * (kPage + capacity);
  uint64_t piece = std::min(capacity, kRingPiece);
  if (fd_ >= 0) {
    // Its last page gives the file its size; what lies between is a hole until the ring gets there.
    if (!reopen_if_stolen() || !reserve_blocks(fd_, offset + capacity, kPage)) return false;
    if (fallocate(fd_, 0, off_t(offset), off_t(kPage + piece)) != 0) {
      // A file system that cannot do this by itself cannot do it by the piece, beside a thread that writes already.
      piece = capacity;
      if (!reserve_blocks(fd_, offset, kPage + capacity)) return false;
    }
  }
  MappedRing ring = map_ring(index);
  if (!ring.header) return false;
  ring.header->offset = offset + kPage;
  ring.header->reserved.store(fd_ < 0 || piece == capacity ? kAllReserved : piece, std::memory_order_relaxed);
  header_->ring_count.store(index + 1, std::memory_order_release);
  *out = ring;
  return true;
}

bool RingFile::extend(RingHeader* ring, uint64_t upto) {
  uint64_t capacity = header_->ring_capacity;
  uint64_t from = ring->reserved.load(std::memory_order_relaxed);
  upto = std::min(upto, capacity);
  if (from >= upto) return true;
  if (!reopen_if_stolen() || fallocate(fd_, 0, off_t(ring->offset + from), off_t(upto - from)) != 0) return false;
  uint64_t reached = upto == capacity ? kAllReserved : upto;
  while (from < reached && !ring->reserved.compare_exchange_weak(from, reached, std::memory_order_release)) {
  }
  return true;
}

void RingFile::unlink_file() {
  if (!path_.empty()) unlink(path_.c_str());
}

void RingFile::abandon() {
  if (owns_descriptor()) close(fd_);
  fd_ = -1;
}

void RingFile::unmap_ring(const MappedRing& ring) { munmap(ring.header, kPage + 2 * ring.capacity); }

void RingFile::unmap(const std::vector<MappedRing>& rings) {
  for (const auto& r : rings) unmap_ring(r);
  munmap(header_, mapped_);
  header_ = nullptr;
}

RingFile::~RingFile() {
  if (header_ && reading_) munmap(header_, mapped_);
  if (owns_descriptor()) close(fd_);
}

std::vector<std::string> ring_directories(const std::string& requested, const std::string& trace_directory) {
  if (!requested.empty()) return {requested};
  std::vector<std::string> out;
  struct statvfs fs;
  if (statvfs(kSharedMemory, &fs) == 0 && uint64_t(fs.f_bavail) * fs.f_frsize >= kEnoughSharedMemory)
    out.push_back(kSharedMemory);
  out.push_back(trace_directory);
  return out;
}

uint64_t process_start_time(uint32_t pid) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%u/stat", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return 0;
  text[n] = 0;
  char* p = strrchr(text, ')');  // the command name may hold anything, the last ')' ends it
  if (!p || p[1] != ' ' || p[2] == 'Z' || p[2] == 'X') return 0;
  p += 2;
  for (int field = 3; field < 22 && p; ++field) p = strchr(p + 1, ' ');
  return p ? strtoull(p, nullptr, 10) : 0;
}

uint64_t own_pid_namespace() {
  struct stat st;
  return stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

}  // namespace dft
