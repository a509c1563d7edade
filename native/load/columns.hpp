// The columns filled by a scan. This list is the only place that names them on the native side.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace dft::load {

inline constexpr int64_t kMissing = std::numeric_limits<int64_t>::min();
inline constexpr int32_t kNoCode = -1;

// A growable text that does not clear new memory.
class Bytes {
 public:
  Bytes() = default;
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  Bytes(Bytes&& o) noexcept
      : data_(std::exchange(o.data_, nullptr)),
        size_(std::exchange(o.size_, 0)),
        capacity_(std::exchange(o.capacity_, 0)) {}
  Bytes& operator=(Bytes&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    std::swap(capacity_, o.capacity_);
    return *this;
  }
  ~Bytes() { std::free(data_); }

  void reserve(size_t n) {
    if (n <= capacity_) return;
    auto* grown = static_cast<char*>(std::realloc(data_, n));
    if (!grown) throw std::bad_alloc();
    data_ = grown;
    capacity_ = n;
  }
  void append(const char* p, size_t n) {
    if (size_ + n > capacity_) reserve(std::max(size_ + n, capacity_ * 2));
    if (n != 0) std::memcpy(data_ + size_, p, n);
    size_ += n;
  }
  void clear() noexcept { size_ = 0; }
  void resize_down(size_t n) noexcept { size_ = n; }  // also up, within the capacity
  char* data() noexcept { return data_; }
  const char* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }
  size_t capacity() const noexcept { return capacity_; }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

// A column of a chunk: it is filled up to the last row that has a value, and catches up when a later one has.
template <class T>
class Column {
 public:
  void put(T v) noexcept { data_[size_++] = v; }
  // Without counting: see reach().
  void put_at(size_t row, T v) noexcept { data_[row] = v; }
  void reach(size_t rows) noexcept { size_ = rows; }
  void set(size_t row, T v, T none) noexcept {
    if (size_ < row) [[unlikely]]
      fill(row, none);
    data_[size_++] = v;
  }
  void fill(size_t rows, T none) noexcept {
    gaps_ = gaps_ || size_ < rows;
    while (size_ < rows) data_[size_++] = none;
  }
  void cut(size_t rows) noexcept { size_ = std::min(size_, rows); }
  // Where its values are from now on; those it has are copied there.
  void move_to(T* place) noexcept {
    if (size_ != 0) std::memcpy(place, data_, size_ * sizeof(T));
    data_ = place;
  }
  const T* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }
  bool gaps() const noexcept { return gaps_; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
  bool gaps_ = false;
};

// Memory for the columns of a chunk; returned memory is reused.
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t size);
  Memory(Memory&& o) noexcept : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  Memory& operator=(Memory&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    return *this;
  }
  ~Memory();
  char* data() const noexcept { return data_; }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
};

// X(name): 64-bit integers, kMissing when absent. Those that whole traces lack come last: their memory, at the end of
// a chunk's, is then never touched.
#define DFT_INT_COLUMNS(X) \
  X(id)                    \
  X(pid) X(tid) X(ts) X(dur) X(level) X(p_idx) X(ret) X(count) X(epoch) X(step) X(image_idx) X(size) X(offset) X(errno_)
// Those that nearly all rows have.
#define DFT_USUAL_COLUMNS(X) X(id) X(pid) X(tid) X(ts) X(dur) X(p_idx) X(name) X(cat)
#define DFT_OTHER_INT_COLUMNS(X) X(level) X(ret) X(count) X(epoch) X(step) X(image_idx) X(size) X(offset) X(errno_)
#define DFT_OTHER_CODE_COLUMNS(X) X(hhash) X(fhash)
// X(name): codes into a dictionary of the same name, kNoCode when absent.
#define DFT_CODE_COLUMNS(X) X(name) X(cat) X(hhash) X(fhash)

// One bit per column: which of a row's values are there.
enum Field : uint32_t {
#define X(n) f_##n,
  DFT_INT_COLUMNS(X) DFT_CODE_COLUMNS(X)
#undef X
};

struct Row {
#define X(n) int64_t n;
  DFT_INT_COLUMNS(X)
#undef X
#define X(n) int32_t n;
  DFT_CODE_COLUMNS(X)
#undef X
  uint32_t has;  // values outside are left over from earlier rows
  int8_t ph;

  bool have(Field f) const noexcept { return (has >> f & 1) != 0; }
  // The value of an integer column: they come first, in order.
  int64_t& slot(Field f) noexcept {
    return *reinterpret_cast<int64_t*>(reinterpret_cast<char*>(this) + f * sizeof(int64_t));
  }
};
static_assert(f_id == 0 && f_errno_ + 1 == f_name && offsetof(Row, errno_) == f_errno_ * sizeof(int64_t));

// A metadata record, or one of the two events by which a process reports itself (start, end).
struct Meta {
  std::string kind, key, value, rest;
  int64_t pid, tid, ts;
};

// The rows of one chunk, in the order of the text. A column in which no row has a value is empty.
struct Columns {
#define X(n) Column<int64_t> n;
  DFT_INT_COLUMNS(X)
#undef X
#define X(n) Column<int32_t> n;
  DFT_CODE_COLUMNS(X)
#undef X
  Column<int8_t> ph;
  Column<int32_t> args_end;  // end of each row's text in args_text
  Bytes args_text;           // what no column holds, as JSON objects; empty when nothing is left
  Bytes records_text;        // the records as they are in the file, one a line, where wanted
  std::vector<Meta> meta;
  size_t rows = 0;

  void reserve_rows(size_t n);
  void push(const Row& r) {
    if (rows == capacity_) [[unlikely]]
      reserve_rows(rows == 0 ? 4096 : rows * 2);
    // Columns a row has no value for are not touched.
#define X(n) | 1u << f_##n
    constexpr uint32_t kUsual = 0 DFT_USUAL_COLUMNS(X);
#undef X
    if (usual_ && (r.has & kUsual) == kUsual) [[likely]] {
#define X(n) n.put_at(rows, r.n);
      DFT_USUAL_COLUMNS(X)
#undef X
    } else {
      count_usual();
#define X(n) \
  if (r.have(f_##n)) n.set(rows, r.n, none_of(n));
      DFT_USUAL_COLUMNS(X)
#undef X
      usual_ = (r.has & kUsual) == kUsual;
    }
#define X(n) \
  if (r.have(f_##n)) n.set(rows, r.n, none_of(n));
    DFT_OTHER_INT_COLUMNS(X)
    DFT_OTHER_CODE_COLUMNS(X)
#undef X
    ph.put(r.ph);
    args_end.put(int32_t(args_text.size()));
    ++rows;
  }
  // Forget rows from `n` on.
  void cut(size_t n) noexcept {
    count_usual();
#define X(c) c.cut(n);
    DFT_INT_COLUMNS(X)
    DFT_CODE_COLUMNS(X)
    X(ph)
    X(args_end)
#undef X
    rows = n;
  }
  // No more rows: columns with a value reach the last one.
  void finish() noexcept {
    count_usual();
#define X(c) \
  if (c.size() != 0) c.fill(rows, kMissing);
    DFT_INT_COLUMNS(X)
#undef X
#define X(c) \
  if (c.size() != 0) c.fill(rows, kNoCode);
    DFT_CODE_COLUMNS(X)
#undef X
  }

 private:
  static constexpr int64_t none_of(const Column<int64_t>&) { return kMissing; }
  static constexpr int32_t none_of(const Column<int32_t>&) { return kNoCode; }
  // So far the usual columns have all rows.
  void count_usual() noexcept {
    if (!usual_) return;
#define X(c) c.reach(rows);
    DFT_USUAL_COLUMNS(X)
#undef X
    usual_ = false;
  }

  Memory memory_;
  size_t capacity_ = 0;
  bool usual_ = false;  // the usual columns have a value in every row so far, and their sizes lag behind
};

}  // namespace dft::load
