// The type Scanner of the module.
#pragma once

#include "python.hpp"

namespace dft::load {

extern PyType_Spec g_scanner_spec;

}  // namespace dft::load
