// Kineto's text about one activity (`"key": value, ...`) as args of an event. Independent of Python.
#pragma once

#include <string>
#include <string_view>

namespace dft::py {

// Of an operator: `input_size`, bytes, shapes and dtypes of its inputs, stack, module, collective.
std::string operator_fragment(std::string_view text);
// Of a kernel, a copy or a runtime call: grid, block, registers, bytes, collective; lists as text, as shapes are.
std::string device_fragment(std::string_view text);

}  // namespace dft::py
