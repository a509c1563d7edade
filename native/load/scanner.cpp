#include "scanner.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <system_error>
#include <thread>

#include "format/member.hpp"

namespace dft::load {
namespace {
constexpr size_t kBlockText = 4u << 20;  // text per block where the file has no members of its own
constexpr size_t kStreamInput = 256u << 10;
constexpr size_t kHeader = 64;
constexpr size_t kUnitWithin = 64u << 10;

// A line is hardly ever shorter: no index makes us allocate more rows than the text can contain.
constexpr size_t kShortLine = 32;

// Text buffers outlive their scanner: the next file finds them grown and their pages in place.
constexpr size_t kMaxSpare = 8;
std::mutex spare_mutex;
auto& spare = *new std::vector<Bytes>;  // never destroyed: threads may still read at exit

Bytes take_buffer() {
  const std::scoped_lock lock(spare_mutex);
  if (spare.empty()) return {};
  Bytes b = std::move(spare.back());
  spare.pop_back();
  return b;
}

void give_buffer(Bytes b) {
  const std::scoped_lock lock(spare_mutex);
  if (spare.size() < kMaxSpare) spare.push_back(std::move(b));
}

bool is_binary(std::string_view head) {
  return std::any_of(head.begin(), head.end(),
                     [](char c) { return uint8_t(c) < ' ' && c != '\n' && c != '\r' && c != '\t'; });
}

}  // namespace

struct FileScanner::Worker {
  Worker(Dictionaries& d, const Filter& f, bool keep_text) : lines(d, f, keep_text), text(take_buffer()) {}
  ~Worker() { give_buffer(std::move(text)); }
  LineScanner lines;
  MemberInflater inflater;
  Bytes text;
};

FileScanner::FileScanner(const std::string& path, unsigned threads, size_t chunk_text, Filter filter, Span span,
                         bool keep_text)
    : named_gzip_(path.ends_with(".gz")),
      threads_(std::max(1u, threads)),
      chunk_text_(std::max<size_t>(chunk_text, 1u << 16)),
      filter_(std::move(filter)),
      dictionaries_(std::make_unique<Dictionaries>()) {
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe would wait for its writer
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), path);
  struct stat st{};
  const int failed = ::fstat(fd_, &st) != 0 ? errno : S_ISDIR(st.st_mode) ? EISDIR : S_ISREG(st.st_mode) ? 0 : EINVAL;
  if (failed != 0) {
    ::close(fd_);
    throw std::system_error(failed, std::generic_category(), path);
  }
  size_ = std::min(uint64_t(st.st_size), span.to);
  offset_ = std::min(span.from, size_);
  counts_.file_bytes = size_ - offset_;
  if (states_unit()) filter_.time_limit = kTimeLimitOfUnits;
  for (unsigned i = 0; i < threads_; ++i)
    workers_.push_back(std::make_unique<Worker>(*dictionaries_, filter_, keep_text));
}

FileScanner::~FileScanner() {
  if (fd_ >= 0) ::close(fd_);
}

size_t FileScanner::read_at(uint64_t offset, void* to, size_t n) {
  size_t got = 0;
  while (got < n) {
    const ssize_t r = ::pread(fd_, static_cast<char*>(to) + got, n - got, static_cast<off_t>(offset + got));
    if (r < 0 && errno == EINTR) continue;
    if (r < 0) throw std::system_error(errno, std::generic_category(), "read");
    if (r == 0) break;
    got += size_t(r);
  }
  return got;
}

const std::string& FileScanner::header_at(uint64_t offset) {
  if (header_offset_ == offset) return header_;
  header_.resize(kHeader);
  header_.resize(offset < size_ ? read_at(offset, header_.data(), kHeader) : 0);
  header_offset_ = offset;
  return header_;
}

// Whether the file's first records name the unit of its times, as other tracers' do.
bool FileScanner::states_unit() {
  std::vector<char> head(kUnitWithin);
  const uint8_t* at = reinterpret_cast<const uint8_t*>(head.data());
  size_t left = read_at(0, head.data(), head.size());
  std::string_view text(head.data(), left);
  Bytes inflated;
  if (begins_as_gzip(text)) {
    inflated.reserve(kUnitWithin);
    StreamInflater().step(at, left, inflated, inflated.capacity());
    text = {inflated.data(), inflated.size()};
  }
  return text.find("time_metric") != text.npos;
}

void FileScanner::find_kind() {
  const std::string head = header_at(offset_);
  if (head.empty()) {
    kind_ = Kind::end;
  } else if (read_member_index(head)) {
    kind_ = Kind::indexed;
  } else if (begins_as_gzip(head)) {
    kind_ = Kind::stream;
  } else {
    // Text, or a file of members whose first is damaged.
    const uint64_t member = named_gzip_ || is_binary(head) ? next_member(offset_ + 1) : size_;
    kind_ = member == size_ ? Kind::plain : Kind::indexed;
  }
}

// Moves over what is not a member: zeros are padding, anything else is damage.
void FileScanner::pass_gap() {
  const uint64_t next = next_member(offset_ + 1);
  bool damage = false;
  std::vector<char> window(kStreamInput);
  while (offset_ < next && !damage) {
    const size_t n = read_at(offset_, window.data(), size_t(std::min<uint64_t>(window.size(), next - offset_)));
    if (n == 0) break;
    damage = std::any_of(window.begin(), window.begin() + ptrdiff_t(n), [](char c) { return c != 0; });
    offset_ += n;
  }
  if (damage) ++counts_.members_cut;
  offset_ = next;
}

// Where the member at offset_ ends: where its index says, unless nothing begins there and something does elsewhere.
uint64_t FileScanner::member_end(uint64_t size, size_t text_size) {
  const uint64_t stated = offset_ + size;
  if (stated == size_ || (stated < size_ && is_member_header(header_at(stated)))) return stated;
  const uint64_t next = next_member(offset_ + 1);
  if (stated > size_ || next == stated) return next;
  // Is it the size that is damaged, or what follows?
  Bytes packed;
  packed.reserve(size);
  packed.resize_down(read_at(offset_, packed.data(), size));
  Worker& w = *workers_[0];
  return w.inflater.inflate(reinterpret_cast<const uint8_t*>(packed.data()), packed.size(), text_size, w.text) ? stated
                                                                                                               : next;
}

// Whole members, skipping from index to index; a member without one starts a stream.
bool FileScanner::collect_indexed(std::deque<Block>& blocks) {
  size_t text = 0;
  while (offset_ < size_ && text < chunk_text_ * threads_) {
    const auto index = read_member_index(header_at(offset_));
    if (!index && !is_member_header(header_at(offset_))) {
      pass_gap();
      continue;
    }
    if (!index || index->text_size > kLargestMember) {  // a piece at a time
      kind_ = Kind::stream;
      break;
    }
    ++counts_.members;
    const uint64_t end = member_end(index->member_size, index->text_size);
    const bool timed = index->facts.first_ts != 0 || index->facts.last_ts != 0;
    const auto from = int64_t(index->facts.first_ts), to = int64_t(index->facts.last_ts);
    // A metadata-only member has no time and is always read; so is the first, which says who the process is.
    if (timed && filter_.any && (from > filter_.ts_max || to < filter_.ts_min) && offset_ != 0) {
      ++counts_.members_skipped;
      offset_ = end;
      continue;
    }
    Block b;
    b.text_size = index->text_size;
    b.cut = offset_ + index->member_size > size_ && end == size_;
    b.lines = index->facts.lines;
    b.packed.reserve(size_t(end - offset_));
    b.packed.resize_down(read_at(offset_, b.packed.data(), b.packed.capacity()));
    offset_ = end;
    text += index->text_size;
    b.ends_file = offset_ >= size_;
    blocks.push_back(std::move(b));
  }
  if (offset_ >= size_ && kind_ == Kind::indexed) kind_ = Kind::end;
  return !blocks.empty();
}

// Appends text up to `room` bytes; 0 at the end of the file.
size_t FileScanner::refill(Bytes& text, size_t room) {
  const size_t before = text.size();
  const size_t limit = before + room;
  text.reserve(limit + kPadding);
  if (kind_ == Kind::plain) {
    const size_t n = read_at(offset_, text.data() + before, room);
    offset_ += n;
    text.resize_down(before + n);
    return n;
  }
  if (!stream_) stream_ = std::make_unique<StreamInflater>();
  while (text.size() < limit) {
    if (packed_at_ == packed_.size()) {
      packed_.resize(kStreamInput);
      packed_.resize(read_at(offset_, packed_.data(), packed_.size()));
      packed_at_ = 0;
      offset_ += packed_.size();
      if (packed_.empty()) {
        if (!stream_->between_members()) {
          ++counts_.members_cut;
          stream_ = std::make_unique<StreamInflater>();
        }
        break;
      }
    }
    const uint8_t* p = packed_.data() + packed_at_;
    size_t n = packed_.size() - packed_at_;
    const auto state = stream_->step(p, n, text, limit);
    packed_at_ = packed_.size() - n;
    if (state == StreamInflater::State::damaged) {
      ++counts_.members_cut;
      // Damaged data may be read beyond the end of its member.
      offset_ = next_member(offset_ - packed_.size() + packed_at_ - stream_->member_bytes() + 1);
      packed_.clear();
      packed_at_ = 0;
      stream_ = std::make_unique<StreamInflater>();
      text.append("\n", 1);  // the line that was begun has no end
      text.reserve(limit + kPadding);
      break;
    }
    if (state == StreamInflater::State::more_room) break;
  }
  return text.size() - before;
}

// The next place at or after `from` where a member begins; the end of the file if there is none.
uint64_t FileScanner::next_member(uint64_t from) {
  constexpr char kMagic[] = {'\x1f', '\x8b', '\x08'};
  std::vector<char> window(kStreamInput);
  for (uint64_t at = from; at < size_;) {
    const size_t n = read_at(at, window.data(), size_t(std::min<uint64_t>(window.size(), size_ - at)));
    const char* const end = window.data() + n;
    for (const char* p = window.data();;) {
      p = static_cast<const char*>(::memmem(p, size_t(end - p), kMagic, sizeof kMagic));
      if (!p) break;
      const uint64_t found = at + uint64_t(p - window.data());
      if (is_member_header(header_at(found))) return found;
      ++p;
    }
    if (n < window.size()) break;
    at += n - (sizeof kMagic - 1);
  }
  return size_;
}

// Appends text until it has a line's end, and says where the last one is; false at the end of the file. A line beyond
// the limit is passed over.
bool FileScanner::refill_to_line_end(Bytes& text, size_t& after_last) {
  size_t searched = 0;
  bool skipping = false;
  while (refill(text, kBlockText) != 0) {
    if (skipping) {
      const auto* const end = static_cast<const char*>(std::memchr(text.data(), '\n', text.size()));
      if (!end) {
        text.clear();
        continue;
      }
      const auto rest = text.size() - size_t(end + 1 - text.data());
      std::memmove(text.data(), end + 1, rest);
      text.resize_down(rest);
      skipping = false;
    }
    const auto* const last = static_cast<const char*>(memrchr(text.data() + searched, '\n', text.size() - searched));
    if (last) {
      after_last = size_t(last + 1 - text.data());
      return true;
    }
    searched = text.size();
    if (text.size() > kLineLimit) {
      ++counts_.long_lines;
      text.clear();
      searched = 0;
      skipping = true;
    }
  }
  if (skipping) text.clear();
  return false;
}

// Text without members of known size: blocks cut at line ends.
bool FileScanner::collect_text(std::deque<Block>& blocks) {
  size_t total = 0;
  while (total < chunk_text_ * threads_) {
    Block b;
    b.text = std::move(carry_);
    carry_ = Bytes();
    size_t keep = 0;
    b.ends_file = !refill_to_line_end(b.text, keep);
    if (!b.ends_file) {
      carry_.append(b.text.data() + keep, b.text.size() - keep);
      b.text.resize_down(keep);
    }
    b.text.reserve(b.text.size() + kPadding);
    std::memset(b.text.data() + b.text.size(), 0, kPadding);
    total += b.text.size();
    const bool done = b.ends_file;
    if (b.text.size() != 0) blocks.push_back(std::move(b));
    if (done) {
      kind_ = Kind::end;
      break;
    }
  }
  return !blocks.empty();
}

bool FileScanner::collect(std::deque<Block>& blocks) {
  if (kind_ == Kind::unknown) find_kind();
  if (kind_ == Kind::indexed && (collect_indexed(blocks) || kind_ == Kind::end)) return !blocks.empty();
  if (kind_ == Kind::plain || kind_ == Kind::stream) return collect_text(blocks);
  return false;
}

std::unique_ptr<Columns> FileScanner::work(Worker& w, std::deque<Block>& blocks, size_t from, size_t to) {
  auto out = std::make_unique<Columns>();
  size_t rows = 0;
  for (size_t i = from; i < to; ++i) rows += std::min(blocks[i].lines, blocks[i].text_size / kShortLine + 16);
  // An index may lie: room for additional rows is made as they come.
  out->reserve_rows(std::min<size_t>(rows, 1u << 20));
  for (size_t i = from; i < to; ++i) {
    Block& b = blocks[i];
    Bytes* text = &b.text;
    if (b.packed.size() != 0) {
      const auto* packed = reinterpret_cast<const uint8_t*>(b.packed.data());
      if (!w.inflater.inflate(packed, b.packed.size(), b.text_size, w.text)) b.cut = true;
      text = &w.text;
    }
    b.text_size = text->size();
    b.tail = w.lines.scan(text->data(), text->size(), *out);
    for (size_t k = text->size(); k > 0 && b.last == 0; --k) {
      const char c = text->data()[k - 1];
      if (c != '\n' && c != ' ' && c != '\r') b.last = c;
    }
    b.text = Bytes();
  }
  out->finish();
  return out;
}

void FileScanner::read_ahead() {
  std::deque<Block> blocks;
  if (!collect(blocks)) return;
  const size_t active = std::min<size_t>(threads_, blocks.size());
  std::vector<std::thread> threads;
  threads.reserve(active);
  std::vector<std::exception_ptr> errors(active);
  std::vector<std::unique_ptr<Columns>> parts(active);
  const auto share = [&](size_t i) {
    try {
      parts[i] = work(*workers_[i], blocks, blocks.size() * i / active, blocks.size() * (i + 1) / active);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  size_t started = 1;
  try {
    for (; started < active; ++started) threads.emplace_back(share, started);
  } catch (const std::system_error&) {
    // No more threads can be started: this one does the rest.
  }
  share(0);
  for (size_t i = started; i < active; ++i) share(i);
  for (std::thread& t : threads) t.join();
  for (const std::exception_ptr& e : errors)
    if (e) std::rethrow_exception(e);

  for (Block& b : blocks) {
    counts_.text_bytes += b.text_size;
    if (b.cut) ++counts_.members_cut;
    if (b.tail != 0) ++counts_.cut_lines;
    if (b.last != 0) counts_.closed = b.last == ']';
  }
  for (auto& p : parts) ready_.push_back(std::move(p));
}

std::unique_ptr<Columns> FileScanner::next() {
  if (ready_.empty()) read_ahead();
  if (ready_.empty()) return nullptr;
  auto first = std::move(ready_.front());
  ready_.pop_front();
  return first;
}

LineCounts FileScanner::line_counts() const {
  LineCounts all;
  for (const auto& w : workers_) {
    const LineCounts& c = w->lines.counts;
    all.lines += c.lines;
    all.events += c.events;
    all.counters += c.counters;
    all.filtered += c.filtered;
    all.meta += c.meta;
    all.bad += c.bad;
  }
  return all;
}

}  // namespace dft::load
