// The session and the records that come from elsewhere, as module functions.
#pragma once

#include "module/seam.hpp"

namespace dft::py {

extern PyMethodDef g_session_functions[];

}  // namespace dft::py
