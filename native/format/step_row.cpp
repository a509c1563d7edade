#include "format/step_row.hpp"

#include <algorithm>
#include <cstring>

#include "format/crc32.hpp"
#include "format/json.hpp"

namespace dft {
namespace {

constexpr std::string_view kMagic = "\xdfRW";
constexpr char kFacts = 'H', kRows = 'R';
constexpr size_t kMask = 3;
constexpr size_t kMaxOfRow = kMask + kRowColumns * 10;
static_assert(kMaxOfRow * kMaxRowsInBlock < 1 << 16);
static_assert(kRowColumns <= kMask * 8);

enum Column : size_t { kEpoch, kStep, kStart, kWall, kStage };
constexpr size_t kFlags = kRowColumns - 1;

using Values = std::array<int64_t, kRowColumns>;

Values values_of(const StepRow& row) {
  Values out;
  memcpy(out.data(), &row, sizeof row);
  return out;
}

// Everything but the wall, which needs the row's own stages.
Values expected_after(const StepRow& before) {
  Values out{};
  out[kEpoch] = before.epoch;
  out[kStep] = before.step + 1;
  out[kStart] = before.end_us();
  out[kFlags] = before.flags;
  return out;
}

int64_t sum_of_stages(const Values& values) {
  int64_t sum = 0;
  for (size_t i = kStage; i < kStage + kRowStageCount; ++i) sum += values[i];
  return sum;
}

char* put_varint(char* p, int64_t value) {
  uint64_t v = uint64_t(value) << 1 ^ uint64_t(value >> 63);
  for (; v >= 0x80; v >>= 7) *p++ = char(v | 0x80);
  *p++ = char(v);
  return p;
}

bool take_varint(const uint8_t*& p, const uint8_t* end, int64_t* value) {
  uint64_t v = 0;
  for (int shift = 0; shift < 64 && p < end; shift += 7) {
    uint8_t byte = *p++;
    v |= uint64_t(byte & 0x7f) << shift;
    if (byte & 0x80) continue;
    *value = int64_t(v >> 1) ^ -int64_t(v & 1);
    return true;
  }
  return false;
}

template <typename T>
void put_number(std::string& out, T value) {
  for (size_t i = 0; i < sizeof value; ++i) out += char(value >> 8 * i);
}

template <typename T>
T number_at(std::string_view bytes, size_t at) {
  T out = 0;
  for (size_t i = 0; i < sizeof out; ++i) out = T(out | T(uint8_t(bytes[at + i])) << 8 * i);
  return out;
}

void append_block(std::string& out, char kind, size_t rows, std::string_view payload) {
  out += kMagic;
  out += kind;
  put_number(out, uint16_t(rows));
  put_number(out, uint16_t(payload.size()));
  put_number(out, gzip_crc32(payload.data(), payload.size()));
  out += payload;
}

bool read_rows(std::string_view payload, size_t count, std::vector<StepRow>* rows) {
  const auto* p = reinterpret_cast<const uint8_t*>(payload.data());
  const uint8_t* end = p + payload.size();
  size_t first = rows->size();
  StepRow before;
  for (size_t n = 0; n < count; ++n) {
    Values values = expected_after(before);
    if (end - p < ptrdiff_t(kMask)) break;
    uint32_t mask = uint32_t(p[0]) | uint32_t(p[1]) << 8 | uint32_t(p[2]) << 16;
    p += kMask;
    bool whole = true;
    for (; mask && whole; mask &= mask - 1) {
      int64_t more = 0;
      whole = take_varint(p, end, &more);
      size_t column = size_t(__builtin_ctz(mask));
      values[column] = int64_t(uint64_t(values[column]) + uint64_t(more));
    }
    if (!whole) break;
    values[kWall] = int64_t(uint64_t(values[kWall]) + uint64_t(sum_of_stages(values)));
    memcpy(static_cast<void*>(&before), values.data(), sizeof before);
    rows->push_back(before);
  }
  if (p == end && rows->size() - first == count) return true;
  rows->resize(first);
  return false;
}

}  // namespace

std::string row_column(size_t column) {
  static constexpr const char* kFirst[] = {"epoch", "step", "start_us", "wall_us"};
  static constexpr const char* kLast[] = {"evaluation_us", "device_busy_us", "read_bytes",
                                          "written_bytes", "samples",        "flags"};
  if (column < kStage) return kFirst[column];
  column -= kStage;
  if (column < kRowStageCount) return std::string(kRowStages[column]) + "_us";
  return kLast[column - kRowStageCount];
}

std::string row_facts(const RunRecord& run, int64_t pid, const std::vector<std::pair<std::string, std::string>>& more) {
  std::string out = "{\"format\":1,\"columns\":[";
  for (size_t i = 0; i < kRowColumns; ++i) {
    if (i) out += ',';
    append_json_string(out, row_column(i));
  }
  out += "],\"pid\":";
  append_int(out, pid);
  out += ",\"host\":";
  append_json_string(out, run.host);
  for (auto& [key, value] : more) {
    out += ',';
    append_json_string(out, key);
    out += ':';
    append_json_string(out, value);
  }
  return out + run_arguments(run);
}

void append_row_blocks(std::string& out, const std::vector<StepRow>& rows) {
  for (size_t from = 0; from < rows.size(); from += kMaxRowsInBlock) {
    size_t count = std::min(kMaxRowsInBlock, rows.size() - from);
    std::string payload(count * kMaxOfRow, '\0');
    char* p = payload.data();
    StepRow before;
    for (size_t n = 0; n < count; ++n) {
      const StepRow& row = rows[from + n];
      Values values = values_of(row), expected = expected_after(before);
      expected[kWall] = sum_of_stages(values);
      uint32_t mask = 0;
      for (size_t i = 0; i < kRowColumns; ++i) mask |= uint32_t(values[i] != expected[i]) << i;
      for (size_t i = 0; i < kMask; ++i) *p++ = char(mask >> 8 * i);
      for (uint32_t left = mask; left; left &= left - 1) {
        size_t i = size_t(__builtin_ctz(left));
        p = put_varint(p, int64_t(uint64_t(values[i]) - uint64_t(expected[i])));
      }
      before = row;
    }
    append_block(out, kRows, count, {payload.data(), size_t(p - payload.data())});
  }
}

void append_fact_block(std::string& out, std::string_view json) {
  if (json.size() < 1 << 16) append_block(out, kFacts, 0, json);
}

RowBlocks read_row_blocks(std::string_view bytes) {
  RowBlocks out;
  size_t at = 0;
  while (at < bytes.size()) {
    size_t found = bytes.find(kMagic, at);
    if (found == bytes.npos) found = bytes.size();
    out.damaged += found - at;
    at = found;
    if (at == bytes.size()) break;
    bool whole = false;
    if (bytes.size() - at >= kRowBlockHeader) {
      size_t size = number_at<uint16_t>(bytes, at + 6);
      if (bytes.size() - at - kRowBlockHeader >= size) {
        std::string_view payload = bytes.substr(at + kRowBlockHeader, size);
        if (gzip_crc32(payload.data(), payload.size()) == number_at<uint32_t>(bytes, at + 8)) {
          char kind = bytes[at + 3];
          // A kind of a later version is skipped.
          whole = kind != kRows || read_rows(payload, number_at<uint16_t>(bytes, at + 4), &out.rows);
          if (kind == kFacts) out.facts.emplace_back(payload);
        }
      }
      if (whole) at += kRowBlockHeader + size;
    }
    if (!whole) {
      ++at;
      ++out.damaged;
    }
  }
  return out;
}

}  // namespace dft
