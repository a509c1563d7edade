#include "args_text.hpp"

#include <cstring>

#include "intern.hpp"

namespace dft::load {
namespace {

// Where the value of `key` begins in each event's text; none: npos.
template <typename F>
void each_value(const int64_t* ends, size_t n, std::string_view text, std::string_view key, F f) {
  size_t begin = 0;
  for (size_t i = 0; i < n; ++i) {
    const size_t end = ends[i] < int64_t(begin) || ends[i] > int64_t(text.size()) ? begin : size_t(ends[i]);
    const void* found = memmem(text.data() + begin, end - begin, key.data(), key.size());
    const size_t at = found ? size_t(static_cast<const char*>(found) - text.data()) + key.size() : end;
    f(i, found ? text.substr(at, end - at) : std::string_view());
    begin = end;
  }
}

}  // namespace

void numbers_of_key(const int64_t* ends, size_t n, std::string_view text, std::string_view key, int64_t* out) {
  each_value(ends, n, text, key, [&](size_t i, std::string_view value) {
    int64_t number = 0;
    size_t digits = 0;
    while (digits < value.size() && digits < 18 && value[digits] >= '0' && value[digits] <= '9')
      number = number * 10 + (value[digits++] - '0');
    out[i] = digits ? number : -1;
  });
}

void texts_of_key(const int64_t* ends, size_t n, std::string_view text, std::string_view key, int64_t* out,
                  std::vector<std::string_view>* values) {
  CodeTable known;
  each_value(ends, n, text, key, [&](size_t i, std::string_view value) {
    size_t size = 0;
    while (size < value.size() && value[size] != '"') size += value[size] == '\\' ? 2 : 1;
    if (size >= value.size()) {
      out[i] = -1;
      return;
    }
    value = value.substr(0, size);
    const uint64_t hash = hash_text(value.data(), value.size());
    int32_t code = known.find(hash, value);
    if (code < 0) {
      code = int32_t(values->size());
      known.add(hash, value, code);
      values->push_back(value);
    }
    out[i] = code;
  });
}

}  // namespace dft::load
