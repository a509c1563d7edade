// The columns one scan fills. The list is the one place that names them on the native side.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace dft::load {

inline constexpr std::int64_t kMissing = std::numeric_limits<std::int64_t>::min();
inline constexpr std::int32_t kNoCode = -1;

// A growable array that does not clear what it hands out.
template <class T>
class Column {
 public:
  Column() = default;
  Column(const Column&) = delete;
  Column& operator=(const Column&) = delete;
  Column(Column&& o) noexcept : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)),
                                capacity_(std::exchange(o.capacity_, 0)) {}
  Column& operator=(Column&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    std::swap(capacity_, o.capacity_);
    return *this;
  }
  ~Column() { std::free(data_); }

  void reserve(std::size_t n) {
    if (n <= capacity_) return;
    auto* grown = static_cast<T*>(std::realloc(data_, n * sizeof(T)));
    if (grown == nullptr) throw std::bad_alloc();
    data_ = grown;
    capacity_ = n;
  }
  void push(T v) {
    if (size_ == capacity_) reserve(capacity_ == 0 ? 1024 : capacity_ * 2);
    data_[size_++] = v;
  }
  void append(const T* p, std::size_t n) {
    if (size_ + n > capacity_) reserve(std::max(size_ + n, capacity_ * 2));
    if (n != 0) std::memcpy(data_ + size_, p, n * sizeof(T));
    size_ += n;
  }
  // Push without the capacity check; the caller reserved.
  void put(T v) noexcept { data_[size_++] = v; }
  // Value of one row; rows passed over have none. The caller reserved.
  void set(std::size_t row, T v, T none) noexcept {
    while (size_ < row) data_[size_++] = none;
    data_[size_++] = v;
  }
  void fill(std::size_t rows, T none) noexcept {
    while (size_ < rows) data_[size_++] = none;
  }
  void clear() noexcept { size_ = 0; }
  void resize_down(std::size_t n) noexcept { size_ = n; }
  T* data() noexcept { return data_; }
  const T* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  std::size_t capacity() const noexcept { return capacity_; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

// X(name): 64-bit integers, kMissing when absent.
#define DFT_INT_COLUMNS(X) \
  X(id) X(pid) X(tid) X(ts) X(dur) X(level) X(p_idx) X(epoch) X(step) X(count) X(size) X(offset) X(ret) X(errno_) X(image_idx)
// X(name): codes into a dictionary of the same name, kNoCode when absent.
#define DFT_CODE_COLUMNS(X) X(name) X(cat) X(hhash) X(fhash)

// One bit per column: which of a row's values are there.
enum Field : std::uint32_t {
#define X(n) f_##n,
  DFT_INT_COLUMNS(X) DFT_CODE_COLUMNS(X)
#undef X
};

struct Row {
#define X(n) std::int64_t n;
  DFT_INT_COLUMNS(X)
#undef X
#define X(n) std::int32_t n;
  DFT_CODE_COLUMNS(X)
#undef X
  std::uint32_t has;  // values outside are left over from earlier rows
  std::int8_t ph;

  bool have(Field f) const noexcept { return (has >> f & 1) != 0; }
};

// A metadata record, or one of the two events by which a process reports itself (start, end).
struct Meta {
  std::string kind, key, value, rest;
  std::int64_t pid, tid, ts;
};

struct Columns {
#define X(n) Column<std::int64_t> n;
  DFT_INT_COLUMNS(X)
#undef X
#define X(n) Column<std::int32_t> n;
  DFT_CODE_COLUMNS(X)
#undef X
  Column<std::int8_t> ph;
  Column<std::int32_t> args_end;  // end of each row's text in args_text
  Column<char> args_text;         // what no column holds, as JSON objects; empty when nothing is left
  std::vector<Meta> meta;
  std::size_t rows = 0;

  void clear() {
#define X(n) n.clear();
    DFT_INT_COLUMNS(X)
    DFT_CODE_COLUMNS(X)
#undef X
    ph.clear();
    args_end.clear();
    args_text.clear();
    meta.clear();
    rows = 0;
  }
  void reserve_rows(std::size_t n) {
    if (n <= ph.capacity()) return;
#define X(c) c.reserve(n);
    DFT_INT_COLUMNS(X)
    DFT_CODE_COLUMNS(X)
#undef X
    args_end.reserve(n);
    ph.reserve(n);
  }
  void push(const Row& r) {
    if (rows == ph.capacity()) reserve_rows(rows == 0 ? 4096 : rows * 2);
    // Columns a row has no value for are not touched: they catch up when one has.
#define X(n) \
  if (r.have(f_##n)) n.set(rows, r.n, kMissing);
    DFT_INT_COLUMNS(X)
#undef X
#define X(n) \
  if (r.have(f_##n)) n.set(rows, r.n, kNoCode);
    DFT_CODE_COLUMNS(X)
#undef X
    ph.put(r.ph);
    args_end.put(static_cast<std::int32_t>(args_text.size()));
    ++rows;
  }
  // Forget rows from `n` on.
  void cut(std::size_t n) noexcept {
#define X(c) \
  if (c.size() > n) c.resize_down(n);
    DFT_INT_COLUMNS(X)
    DFT_CODE_COLUMNS(X)
    X(ph)
    X(args_end)
#undef X
    rows = n;
  }
};

// The rows of one chunk, every column in one block of memory.
// A column in which no row has a value takes no room and is null.
class Chunk {
 public:
  // From `parts` in order; their metadata is moved out.
  explicit Chunk(const std::vector<Columns*>& parts);
  ~Chunk();
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;

#define X(n) const std::int64_t* n = nullptr;
  DFT_INT_COLUMNS(X)
#undef X
#define X(n) const std::int32_t* n = nullptr;
  DFT_CODE_COLUMNS(X)
#undef X
  const std::int8_t* ph = nullptr;
  const std::int32_t* args_end = nullptr;
  const char* args_text = nullptr;
  std::size_t args_size = 0;
  std::size_t rows = 0;
  std::vector<Meta> meta;

 private:
  char* block_ = nullptr;
  std::size_t block_size_ = 0;
};

}  // namespace dft::load
