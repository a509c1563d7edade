// Time queries from any thread, with or without a session.
#pragma once

#include "record/clock.hpp"

namespace dft {

void note_session_clock(const Anchor& start, uint64_t epoch_offset);
void forget_session_clock();

}  // namespace dft
