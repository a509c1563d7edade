#include "columns.hpp"

#include <mutex>

namespace dft::load {
namespace {

constexpr size_t kGrain = size_t{64} << 10, kLine = 64;

// Returned memory: a reader that releases chunks as it reads uses the same pages over and over.
struct Spare {
  char* data;
  size_t size;
};
constexpr size_t kMaxSpare = 4;
std::mutex spare_mutex;
auto& spare = *new std::vector<Spare>;  // never destroyed: threads may still read at exit

}  // namespace

Memory::Memory(size_t size) : size_((size + kGrain - 1) / kGrain * kGrain) {
  {
    const std::scoped_lock lock(spare_mutex);
    for (auto it = spare.begin(); it != spare.end(); ++it)
      if (it->size >= size_ && it->size <= size_ * 2) {
        data_ = it->data;
        size_ = it->size;
        spare.erase(it);
        return;
      }
  }
  data_ = static_cast<char*>(std::aligned_alloc(kLine, size_));
  if (!data_) throw std::bad_alloc();
}

Memory::~Memory() {
  if (!data_) return;
  char* oldest = nullptr;
  {
    const std::scoped_lock lock(spare_mutex);
    if (spare.size() == kMaxSpare) {
      oldest = spare.front().data;
      spare.erase(spare.begin());
    }
    spare.push_back({data_, size_});
  }
  std::free(oldest);
}

void Columns::reserve_rows(size_t n) {
  if (n <= capacity_) return;
  count_usual();
  size_t at = 0;
  const auto room = [&](size_t width) {
    const size_t from = at;
    at += (n * width + kLine - 1) / kLine * kLine;
    return from;
  };
#define X(c) const size_t at_##c = room(sizeof(*c.data()));
  X(ph)
  X(args_end)
  DFT_CODE_COLUMNS(X)
  DFT_INT_COLUMNS(X)
#undef X
  Memory grown(at);
#define X(c) \
  c.move_to(reinterpret_cast<std::remove_const_t<std::remove_pointer_t<decltype(c.data())>>*>(grown.data() + at_##c));
  DFT_INT_COLUMNS(X)
  DFT_CODE_COLUMNS(X)
  X(ph)
  X(args_end)
#undef X
  memory_ = std::move(grown);
  capacity_ = n;
}

}  // namespace dft::load
