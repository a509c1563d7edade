#include "write/file_names.hpp"

#include <charconv>

namespace dft {
namespace {

// Beyond this many files, a name may appear twice in a trace rather than cost memory.
constexpr size_t kMax = 1 << 20;

// The hash of an FH record, 0 for any other.
uint64_t named_file(const Record& r, std::string_view* path) {
  Strings s;
  if (r.flags & kOnHeap) return 0;
  memcpy(&s, r.payload(), sizeof s);
  const char* text = r.payload() + sizeof s;
  if (s.first_size != 2 || memcmp(text, "FH", 2) != 0) return 0;
  *path = {text + s.first_size, s.second_size};
  uint64_t hash = 0;
  std::from_chars(text + s.first_size + s.second_size, r.payload() + r.payload_size, hash, 16);
  return hash;
}

}  // namespace

void FileNames::new_part() {
  written_.assign(written_.size(), 0);
  used_ = 0;
}

void FileNames::grow() {
  if (used_ >= kMax) {
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

bool FileNames::contains(uint64_t hash) const {
  if (written_.empty()) return false;
  size_t mask = written_.size() - 1;
  for (size_t i = hash & mask; written_[i]; i = (i + 1) & mask)
    if (written_[i] == hash) return true;
  return false;
}

bool FileNames::has(const Record& r) const {
  std::string_view path;
  uint64_t hash = named_file(r, &path);
  return hash != 0 && contains(hash);
}

void FileNames::note(const Record& r) {
  std::string_view path;
  uint64_t hash = named_file(r, &path);
  if (hash == 0) return;
  if (keep_paths_) paths_.try_emplace(hash, path);
  insert(hash);
}

std::string_view FileNames::missing(uint64_t hash) {
  if (!keep_paths_ || hash == 0) return {};
  auto it = paths_.find(hash);
  return it != paths_.end() && insert(hash) ? std::string_view(it->second) : std::string_view();
}

}  // namespace dft
