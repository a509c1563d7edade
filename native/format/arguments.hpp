// The arguments of a record as text: `,"key":value`, one after the other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "format/json.hpp"

namespace dft {

inline void append_key(std::string& out, std::string_view key) {
  out += ",\"";
  out += key;
  out += "\":";
}

inline void append_arg(std::string& out, std::string_view key, int64_t value) {
  append_key(out, key);
  append_int(out, value);
}

inline void append_arg(std::string& out, std::string_view key, std::string_view value) {
  append_key(out, key);
  append_json_string(out, value);
}

}  // namespace dft
