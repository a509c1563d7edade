// Strings to small numbers: one shared table, and a cache per scanning thread in front of it.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace dft::load {

inline uint64_t hash_text(const char* s, size_t n) noexcept {
  uint64_t h = 0x9E3779B97F4A7C15ull ^ (n * 0xff51afd7ed558ccdull);
  while (n >= 8) {
    uint64_t w;
    std::memcpy(&w, s, 8);
    h = (h ^ w) * 0xff51afd7ed558ccdull;
    h ^= h >> 32;
    s += 8;
    n -= 8;
  }
  uint64_t w = 0;
  if (n != 0) std::memcpy(&w, s, n);
  h = (h ^ w) * 0xc4ceb9fe1a85ec53ull;
  return h ^ (h >> 29);
}

// Open addressing over codes; the strings live elsewhere and never move.
class CodeTable {
 public:
  CodeTable() : slots_(256) {}

  // The code of `s`, or -1.
  int32_t find(uint64_t h, std::string_view s) const noexcept {
    for (size_t i = h & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
      const Slot& slot = slots_[i];
      if (slot.code < 0) return -1;
      if (slot.hash == h && slot.text == s) return slot.code;
    }
  }

  void add(uint64_t h, std::string_view s, int32_t code) {
    if ((used_ + 1) * 2 > slots_.size()) grow();
    place(Slot{h, s, code});
    ++used_;
  }

 private:
  struct Slot {
    uint64_t hash = 0;
    std::string_view text;
    int32_t code = -1;
  };
  void place(const Slot& slot) {
    size_t i = slot.hash & (slots_.size() - 1);
    while (slots_[i].code >= 0) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = slot;
  }
  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& s : old)
      if (s.code >= 0) place(s);
  }
  std::vector<Slot> slots_;
  size_t used_ = 0;
};

// The dictionary of one column: append-only, so a code stays valid for the life of the scan.
class Dictionary {
 public:
  struct Entry {
    int32_t code;
    std::string_view text;
  };

  Entry intern(uint64_t h, std::string_view s) {
    const std::scoped_lock lock(mutex_);
    const int32_t known = table_.find(h, s);
    if (known >= 0) return {known, strings_[size_t(known)]};
    strings_.emplace_back(s);
    const auto code = int32_t(strings_.size() - 1);
    table_.add(h, strings_.back(), code);
    return {code, strings_.back()};
  }
  size_t size() const {
    const std::scoped_lock lock(mutex_);
    return strings_.size();
  }
  std::string_view at(size_t i) const {
    const std::scoped_lock lock(mutex_);
    return strings_[i];
  }

 private:
  mutable std::mutex mutex_;
  CodeTable table_;
  std::deque<std::string> strings_;
};

// A thread's view of a dictionary: the lock is taken once per new string, not once per row.
class Interner {
 public:
  explicit Interner(Dictionary& shared) : shared_(&shared) {}

  int32_t operator()(std::string_view s) {
    if (s == last_text_) return last_code_;
    const uint64_t h = hash_text(s.data(), s.size());
    int32_t code = table_.find(h, s);
    if (code < 0) {
      const Dictionary::Entry e = shared_->intern(h, s);
      table_.add(h, e.text, e.code);
      code = e.code;
      texts_.resize(std::max<size_t>(texts_.size(), size_t(code) + 1));
      texts_[size_t(code)] = e.text;
    }
    last_code_ = code;
    last_text_ = texts_[size_t(code)];
    return code;
  }

 private:
  Dictionary* shared_;
  CodeTable table_;
  std::vector<std::string_view> texts_;
  std::string_view last_text_{"\xff\xff impossible", 13};
  int32_t last_code_ = -1;
};

}  // namespace dft::load
