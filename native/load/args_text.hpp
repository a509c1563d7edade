// One key's values in the args of many events, from their concatenated texts.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace dft::load {

// `ends`: where each event's text ends. `key`: as it is written, with quotes and colon. -1: not there, or no number.
void numbers_of_key(const int64_t* ends, size_t n, std::string_view text, std::string_view key, int64_t* out);

// The same for strings; `key` ends with the opening quote. `out` has indices into `values`.
void texts_of_key(const int64_t* ends, size_t n, std::string_view text, std::string_view key, int64_t* out,
                  std::vector<std::string_view>* values);

}  // namespace dft::load
