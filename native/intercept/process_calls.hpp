// Events of processes rather than files.
#pragma once

#include <vector>

#include "intercept/io_record.hpp"
#include "intercept/patcher.hpp"

namespace dft {

void record_call(Call call, uint64_t start, const Finished& done, int64_t ret, int error, const Values& values);

void add_vfork_hook(std::vector<Hook>* out);

}  // namespace dft
