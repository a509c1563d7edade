// One row per training step: where its time went, in the stages of the report's ledger, and how rows are stored.
//
// A file of rows is a sequence of blocks, each complete in itself, so that damage costs a block and nothing more:
//   u8[3] "\xdfRW", u8 kind ('H': facts about the process as JSON, 'R': rows), u16 rows, u16 size of the payload,
//   u32 CRC-32 of the payload, payload; little endian.
// A row is a mask of three bytes and, for each bit set, the difference from what was expected as a signed varint
// (zigzag): of `epoch` and `flags` the value before, of `step` the one after it, of `start_us` the end of the row
// before, of `wall_us` the sum of the stages, of everything else 0. In the first row of a block nothing came before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api.hpp"
#include "format/run_record.hpp"

namespace dft {

inline constexpr const char* kRowStages[] = {"fetch_wait", "read",     "preprocess", "collate",    "transfer",
                                             "forward",    "backward", "optimizer",  "comm",       "checkpoint",
                                             "sync",       "own_code", "other",      "unexplained"};
inline constexpr size_t kRowStageCount = std::size(kRowStages);

enum RowFlag : int64_t {
  kRowForwardUnseen = 1,  // nobody saw where its forward pass began
  kRowInference = 2,      // a batch or a call of a model that does not train
  kRowLearns = 4,         // it has a backward pass or an optimizer step
  kRowLoopBegins = 8,     // the first of a pass over a loader, as an annotated loop counts
  kRowAutomatic = 16,     // marked by automatic tracing
  kRowBetween = 32,       // no step: what came between two of them, before the first or after the last
  kRowByUpdates = 64,     // from one `compute.step` to the next, in a program without a loader
  kRowCut = 128,          // it had more events than are kept: its stages are known in part
  kRowDevice = 256,       // `device_busy_us` is known
  kRowRestores = 512,     // a checkpoint was restored in it, by its own thread
  kRowThread = 1 << 12,   // from this bit on: which of the threads with steps, in the order of their first
};

// The columns in the order of the mask's bits. Times in us; `wall_us` leaves out `evaluation_us`.
struct StepRow {
  int64_t epoch = -1;  // -1: not known
  int64_t step = -1;
  int64_t start_us = 0;
  int64_t wall_us = 0;
  std::array<int64_t, kRowStageCount> stage_us{};
  int64_t evaluation_us = 0;   // evaluation and compilation inside
  int64_t device_busy_us = 0;  // of the phases that the device was seen to have passed meanwhile
  int64_t read_bytes = 0;
  int64_t written_bytes = 0;
  int64_t samples = 0;
  int64_t flags = 0;

  int64_t end_us() const { return start_us + wall_us + evaluation_us; }
};
inline constexpr size_t kRowColumns = sizeof(StepRow) / sizeof(int64_t);
static_assert(kRowColumns == 24);

// The name of each column.
DFT_API std::string row_column(size_t column);

// What a file of rows says about its process, as JSON without the last brace: a rank may become known later.
// `more`: what the user says about the run, keys and values.
std::string row_facts(const RunRecord& run, int64_t pid, const std::vector<std::pair<std::string, std::string>>& more);

inline constexpr size_t kRowBlockHeader = 12;
inline constexpr size_t kMaxRowsInBlock = 256;  // at most 243 bytes each

// Appends blocks with these rows.
void append_row_blocks(std::string& out, const std::vector<StepRow>& rows);
// Appends a block with facts, which are JSON of less than 64 KiB.
void append_fact_block(std::string& out, std::string_view json);

struct RowBlocks {
  std::vector<StepRow> rows;
  std::vector<std::string> facts;
  uint64_t damaged = 0;  // bytes that belong to no readable block
};
// Reads whatever is intact.
RowBlocks read_row_blocks(std::string_view bytes);

}  // namespace dft
