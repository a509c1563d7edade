// A strict JSON reader for the tests: what it takes, every reader of the traces takes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

struct Json {
  enum Kind { kNull, kFalse, kTrue, kNumber, kString, kArray, kObject } kind = kNull;
  std::string text;  // of strings, decoded; of numbers, as written
  std::vector<Json> items;
  std::vector<std::pair<std::string, Json>> members;

  bool has(std::string_view key) const;
  // The member `key`; a null value when there is none.
  const Json& operator[](std::string_view key) const;
  int64_t integer() const;
};

std::optional<Json> parse_json(std::string_view text);
bool valid_utf8(std::string_view text);
