#include <mutex>

#include "columns.hpp"

namespace dft::load {
namespace {

constexpr std::size_t kGrain = std::size_t{64} << 10;

// The last block given back: a reader that lets chunks go as it reads uses the same pages over and over.
std::mutex spare_mutex;
char* spare = nullptr;
std::size_t spare_size = 0;

char* take_block(std::size_t& size) {
  size = (size + kGrain - 1) / kGrain * kGrain;
  {
    const std::scoped_lock lock(spare_mutex);
    if (spare != nullptr && spare_size >= size && spare_size <= size * 2) {
      size = spare_size;
      return std::exchange(spare, nullptr);
    }
  }
  void* p = std::aligned_alloc(64, size);
  if (p == nullptr) throw std::bad_alloc();
  return static_cast<char*>(p);
}

void give_block(char* p, std::size_t size) {
  char* old = p;
  {
    const std::scoped_lock lock(spare_mutex);
    if (spare == nullptr || spare_size < size) {
      old = std::exchange(spare, p);
      spare_size = size;
    }
  }
  std::free(old);
}

}  // namespace

Chunk::Chunk(const std::vector<Columns*>& parts) {
  std::size_t width = 1 + sizeof(std::int32_t);
#define X(n) bool has_##n = false;
  DFT_INT_COLUMNS(X)
  DFT_CODE_COLUMNS(X)
#undef X
  for (const Columns* c : parts) {
    rows += c->rows;
    args_size += c->args_text.size();
#define X(n) has_##n = has_##n || c->n.size() != 0;
    DFT_INT_COLUMNS(X)
    DFT_CODE_COLUMNS(X)
#undef X
  }
#define X(n) \
  if (has_##n) width += sizeof(*n);
  DFT_INT_COLUMNS(X)
  DFT_CODE_COLUMNS(X)
#undef X
  for (Columns* c : parts)
    for (Meta& m : c->meta) meta.push_back(std::move(m));
  if (rows == 0) return;
  block_size_ = rows * width + args_size + 64 * 32;
  block_ = take_block(block_size_);
  char* at = block_;
  const auto place = [&](std::size_t bytes) {
    char* p = at;
    at += (bytes + 63) / 64 * 64;
    return p;
  };
  const auto gather = [&](auto& column, auto member, auto none) {
    using T = std::remove_const_t<std::remove_pointer_t<std::remove_reference_t<decltype(column)>>>;
    auto* to = reinterpret_cast<T*>(place(rows * sizeof(T)));
    column = to;
    for (const Columns* c : parts) {
      const std::size_t n = (c->*member).size();
      if (n != 0) std::memcpy(to, (c->*member).data(), n * sizeof(T));
      std::fill(to + n, to + c->rows, none);
      to += c->rows;
    }
  };
#define X(n) \
  if (has_##n) gather(n, &Columns::n, kMissing);
  DFT_INT_COLUMNS(X)
#undef X
#define X(n) \
  if (has_##n) gather(n, &Columns::n, kNoCode);
  DFT_CODE_COLUMNS(X)
#undef X
  gather(ph, &Columns::ph, std::int8_t{0});
  auto* ends = reinterpret_cast<std::int32_t*>(place(rows * sizeof(std::int32_t)));
  args_end = ends;
  char* text = place(args_size);
  args_text = text;
  std::int32_t base = 0;
  for (const Columns* c : parts) {
    for (std::size_t i = 0; i < c->rows; ++i) ends[i] = c->args_end.data()[i] + base;
    ends += c->rows;
    if (c->args_text.size() != 0) std::memcpy(text, c->args_text.data(), c->args_text.size());
    text += c->args_text.size();
    base += static_cast<std::int32_t>(c->args_text.size());
  }
}

Chunk::~Chunk() {
  if (block_ != nullptr) give_block(block_, block_size_);
}

}  // namespace dft::load
