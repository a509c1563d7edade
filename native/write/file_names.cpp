#include "write/file_names.hpp"

#include <charconv>

namespace dft {
namespace {

// Beyond this many files a name may appear twice in a trace rather than cost memory.
constexpr size_t kMost = 1 << 20;

}  // namespace

void FileNames::new_part() {
  written_.assign(written_.size(), 0);
  used_ = 0;
}

void FileNames::grow() {
  if (used_ >= kMost) {
    new_part();
    return;
  }
  std::vector<uint64_t> before(written_.empty() ? 1024 : written_.size() * 2);
  before.swap(written_);
  used_ = 0;
  for (uint64_t hash : before)
    if (hash) insert(hash);
}

bool FileNames::insert(uint64_t hash) {
  if ((used_ + 1) * 2 > written_.size()) grow();
  size_t mask = written_.size() - 1;
  for (size_t i = hash & mask;; i = (i + 1) & mask) {
    if (written_[i] == hash) return false;
    if (written_[i] == 0) {
      written_[i] = hash;
      ++used_;
      return true;
    }
  }
}

bool FileNames::is_repeated(const Record& r) {
  Strings s;
  if (r.flags & kOnHeap) return false;
  memcpy(&s, r.payload(), sizeof s);
  const char* text = r.payload() + sizeof s;
  if (s.first_size != 2 || memcmp(text, "FH", 2) != 0) return false;
  const char* hex = text + s.first_size + s.second_size;
  uint64_t hash = 0;
  if (std::from_chars(hex, r.payload() + r.payload_size, hash, 16).ec != std::errc()) return false;
  if (keep_paths_) paths_.try_emplace(hash, text + 2, s.second_size);
  return hash != 0 && !insert(hash);
}

std::string_view FileNames::missing(uint64_t hash) {
  if (!keep_paths_ || hash == 0) return {};
  auto it = paths_.find(hash);
  return it != paths_.end() && insert(hash) ? std::string_view(it->second) : std::string_view();
}

}  // namespace dft
