// Python values as JSON text. Values that cannot be shown are described; values too long for an event are cut and
// counted.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "module/cpython_util.hpp"

namespace dft::py {

// The text of all args of one event together.
inline constexpr size_t kMaxArgsText = 4 << 20;

// Called with an exception set by the program's own code (a __str__, an attribute). Errors are forgotten: recording
// must not fail, nor end the program. What came from outside (KeyboardInterrupt, gevent's Timeout) is kept for
// raise_kept().
void forgive();
// At the end of formatting: true, with the exception set, if one was kept.
extern std::atomic<uint32_t> g_kept_errors;  // of all threads: asked first, since it nearly always answers for each
bool raise_own_kept();
inline bool raise_kept() { return g_kept_errors.load(std::memory_order_relaxed) != 0 && raise_own_kept(); }

void append_value(std::string& out, PyObject* value, int depth = 0);
// The UTF-8 bytes of a str (or of str(value)); lone surrogates become '?'.
std::string text_of(PyObject* value);
// A user's key as JSON, with its colon: "step":
std::string key_text(PyObject* key);

// The args of one event: a ready JSON fragment `,"k":1,"l":"x"` that still knows its pairs.
class Args {
 public:
  // Sets a pair; an existing key moves to the end with its new value.
  void set(std::string_view key, PyObject* value);
  void set_text(std::string_view key, std::string_view json);
  // All pairs of a mapping. Anything else is recorded under "args".
  void set_all(PyObject* mapping);

  // Whether what it keeps for further use is little.
  bool is_small() const { return text_.capacity() <= 256 && more_.capacity() == 0; }
  void clear() {
    text_.clear();
    more_.clear();
    count_ = 0;
    short_size_ = 0;
    traits_ = 0;
  }
  bool empty() const { return count_ == 0; }
  size_t size() const { return count_; }
  std::string_view text() const { return short_size_ ? std::string_view(short_, short_size_) : text_; }
  std::string_view key(size_t i) const { return {text().data() + piece(i).start + 1, piece(i).key_size}; }
  std::string_view value(size_t i) const {
    const Piece& p = piece(i);
    return {text().data() + p.start + 1 + p.key_size, p.size - 1 - p.key_size};
  }
  // False: they certainly have no key in common.
  bool may_share_keys(const Args& other) const { return (traits_ & other.traits_) != 0; }
  bool has(std::string_view key) const {
    for (size_t i = 0; i < count_; ++i)
      if (this->key(i) == key) return true;
    return false;
  }

 private:
  struct Piece {
    uint32_t start, size, key_size;
  };
  static constexpr size_t kInline = 4;
  const Piece& piece(size_t i) const { return i < kInline ? inline_[i] : more_[i - kInline]; }
  Piece& piece(size_t i) { return i < kInline ? inline_[i] : more_[i - kInline]; }
  void remove(std::string_view key) {
    if (traits_ & trait(key)) remove_known(key);
  }
  void remove_known(std::string_view key);
  // A bit that equal keys have in common, and different ones hardly ever.
  static uint64_t trait(std::string_view key) { return uint64_t{1} << ((key.size() + uint8_t(key[1])) % 64); }
  // Into `text_`, where there is room for anything.
  void make_roomy();
  // `known`: the key already has its comma before it.
  void begin(std::string_view key, bool known);
  template <typename Append>
  void add(std::string_view key, bool known, Append append);
  bool add_number(std::string_view known, PyObject* value);
  void set_dict(PyObject* dict);
  // `known`: the text of the key, if there is one.
  void set_any(const std::string* known, PyObject* key, PyObject* item, bool distinct);

  std::string text_;
  std::array<Piece, kInline> inline_;
  std::vector<Piece> more_;
  size_t count_ = 0;
  uint64_t traits_ = 0;  // of its keys, and of those it had
  // The whole text as long as it is a few numbers, which most are; `text_` is empty then.
  static constexpr size_t kShort = 64;
  uint8_t short_size_ = 0;
  char short_[kShort];
};

}  // namespace dft::py
