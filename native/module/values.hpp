// Python values as JSON text. Never raises: what cannot be shown is described.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "module/python.hpp"

namespace dft::py {

void append_value(std::string& out, PyObject* value, int depth = 0);
// The UTF-8 bytes of a str (or of str(value)); lone surrogates become '?'.
std::string text_of(PyObject* value);

struct Arg {
  std::string key;    // as a JSON string with its colon: "step":
  std::string value;  // JSON
};

std::string key_text(PyObject* key);
// Appends the pairs of a mapping. Non-mappings are recorded under "args".
void collect_args(std::vector<Arg>& out, PyObject* mapping);
// Sets or replaces one pair.
void put_arg(std::vector<Arg>& args, std::string key, std::string value);
void append_fragment(std::string& out, const std::vector<Arg>& args);

}  // namespace dft::py
