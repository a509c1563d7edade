// Reading JSON in place: nothing is copied, and what is not needed is skipped.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace dft::link {

// All functions return false at the first thing that is not as expected; the caller then leaves the text to a
// slower reader that repairs.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : p_(text.data()), end_(text.data() + text.size()) {}

  const char* at() const { return p_; }
  bool done() const { return p_ >= end_; }
  void jump(size_t bytes) { p_ += bytes; }
  size_t left() const { return size_t(end_ - p_); }

  void blanks() {
    while (p_ < end_ && (*p_ == ' ' || *p_ == '\n' || *p_ == '\t' || *p_ == '\r')) ++p_;
  }
  bool take(char c) {
    blanks();
    if (p_ >= end_ || *p_ != c) return false;
    ++p_;
    return true;
  }
  bool peek(char c) {
    blanks();
    return p_ < end_ && *p_ == c;
  }

  // The text between the quotes, including escapes.
  bool string(std::string_view& out) {
    if (!take('"')) return false;
    const char* begin = p_;
    while (true) {
      const void* found = std::memchr(p_, '"', left());
      if (!found) return false;
      const char* quote = static_cast<const char*>(found);
      const char* back = quote;
      while (back > begin && back[-1] == '\\') --back;
      p_ = quote + 1;
      if (((quote - back) & 1) == 0) {
        out = {begin, size_t(quote - begin)};
        return true;
      }
    }
  }

  // A whole number; the largest unsigned ones, which torch writes for "none", are -1.
  bool integer(int64_t& out) {
    blanks();
    const bool negative = p_ < end_ && *p_ == '-';
    if (negative) ++p_;
    const char* begin = p_;
    uint64_t value = 0;
    while (p_ < end_ && *p_ >= '0' && *p_ <= '9') value = value * 10 + uint64_t(*p_++ - '0');
    if (p_ == begin || p_ - begin > 20 || (p_ < end_ && (*p_ == '.' || *p_ == 'e' || *p_ == 'E'))) return false;
    if (p_ - begin == 20 || value > uint64_t(INT64_MAX)) {
      out = -1;
    } else {
      out = negative ? -int64_t(value) : int64_t(value);
    }
    return true;
  }

  // A decimal number times 1000, rounded: microseconds as nanoseconds, exactly.
  bool thousandths(int64_t& out) {
    blanks();
    const bool negative = p_ < end_ && *p_ == '-';
    if (negative) ++p_;
    const char* begin = p_;
    int64_t value = 0;
    while (p_ < end_ && *p_ >= '0' && *p_ <= '9' && p_ - begin < 17) value = value * 10 + (*p_++ - '0');
    if (p_ == begin || p_ - begin > 16 || value > 9'000'000'000'000'000) return false;
    int digits = 0;
    bool up = false;
    if (p_ < end_ && *p_ == '.') {
      ++p_;
      for (; p_ < end_ && *p_ >= '0' && *p_ <= '9'; ++p_, ++digits) {
        if (digits < 3) value = value * 10 + (*p_ - '0');
        if (digits == 3) up = *p_ >= '5';
      }
    }
    if (p_ < end_ && (*p_ == 'e' || *p_ == 'E')) return false;
    for (int i = digits; i < 3; ++i) value *= 10;
    value += up ? 1 : 0;
    out = negative ? -value : value;
    return true;
  }

  // Any value; `out` is its text.
  bool value(std::string_view& out) {
    blanks();
    const char* begin = p_;
    if (!skip()) return false;
    out = {begin, size_t(p_ - begin)};
    return true;
  }

  bool skip() {
    blanks();
    if (p_ >= end_) return false;
    std::string_view ignored;
    if (*p_ == '"') return string(ignored);
    if (*p_ != '[' && *p_ != '{') {
      const char* begin = p_;
      while (p_ < end_ && *p_ != ',' && *p_ != ']' && *p_ != '}' && *p_ != ' ' && *p_ != '\n' && *p_ != '\r') ++p_;
      return p_ > begin;
    }
    int depth = 0;
    while (p_ < end_) {
      switch (*p_) {
        case '"':
          if (!string(ignored)) return false;
          continue;
        case '[':
        case '{': ++depth; break;
        case ']':
        case '}':
          if (--depth == 0) {
            ++p_;
            return true;
          }
          break;
        default: break;
      }
      ++p_;
    }
    return false;
  }

  // Each member of an object: `member(key)` reads its value.
  template <class Member>
  bool object(Member member) {
    if (!take('{')) return false;
    if (take('}')) return true;
    while (true) {
      std::string_view key;
      if (!string(key) || !take(':') || !member(key)) return false;
      if (take(',')) continue;
      return take('}');
    }
  }

 private:
  const char* p_;
  const char* end_;
};

// Numbers for texts, in order of first appearance.
class Texts {
 public:
  int32_t code(std::string_view text) {
    const auto [found, fresh] = codes_.try_emplace(text, int32_t(list.size()));
    if (fresh) list.push_back(text);
    return found->second;
  }
  std::vector<std::string_view> list;

 private:
  std::unordered_map<std::string_view, int32_t> codes_;
};

struct Blob {
  std::string text;
  std::vector<int64_t> ends;
  void add(std::string_view piece) {
    text.append(piece);
    ends.push_back(int64_t(text.size()));
  }
};

struct Tensors {
  std::vector<int64_t> node, tensor, storage, elements, item;
};

struct Side {
  Blob values;
  std::vector<int32_t> kind;  // shapes and types together
  Tensors tensors;
};

struct Nodes {
  std::vector<int64_t> id, parent, rf, fw_parent, seq;
  std::vector<int32_t> name, rest;
  Texts names, rests, kinds;
  std::vector<std::string_view> kind_shapes, kind_types;
  std::vector<std::string> kind_keys;  // owns the texts of `kinds`
  Side inputs, outputs;
};

struct Events {
  std::vector<int64_t> pid, tid, ts, dur, rf, external, correlation, seq, fw_tid, device, stream, args_begin, args_end;
  std::vector<int32_t> name, cat;
  Texts names, cats;
  std::vector<int64_t> thread_tid, thread_begin, thread_end;  // names of threads
};

// The items of a list, without its brackets. False: some item is unusual or no JSON.
bool parse_nodes(std::string_view text, Nodes& out);
bool parse_events(std::string_view text, Events& out);

}  // namespace dft::link
