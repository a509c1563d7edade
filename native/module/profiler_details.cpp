#include "module/profiler_details.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "format/json.hpp"

namespace dft::py {
namespace {

using std::string_view;

template <size_t N>
using Names = std::array<std::pair<string_view, string_view>, N>;

// Concrete inputs and strides are left out: they double the trace and no reader needs them.
constexpr Names<13> kOperatorFields{{
    {"Call stack", "stack"},
    {"Module Hierarchy", "module"},
    {"Python thread", "python_thread"},
    {"Collective name", "collective"},
    {"dtype", "dtype"},
    {"In msg nelems", "in_elements"},
    {"Out msg nelems", "out_elements"},
    {"Group size", "group_size"},
    {"Process Group Name", "process_group"},
    {"Process Group Ranks", "process_group_ranks"},
    {"Rank", "rank"},
    {"Src Rank", "src_rank"},
    {"Dst Rank", "dst_rank"},
}};
constexpr Names<13> kDeviceFields{{
    {"grid", "grid"},
    {"block", "block"},
    {"registers per thread", "registers"},
    {"shared memory", "shared_memory"},
    {"est. achieved occupancy %", "occupancy_percent"},
    {"bytes", "bytes"},
    {"memory bandwidth (GB/s)", "bandwidth_gb_s"},
    {"cbid", "cbid"},
    {"Collective name", "collective"},
    {"In msg nelems", "in_elements"},
    {"Out msg nelems", "out_elements"},
    {"Group size", "group_size"},
    {"Process Group Name", "process_group"},
}};
// Kineto names dtypes as C++ does.
constexpr std::pair<string_view, int64_t> kElementBytes[] = {
    {"float", 4},
    {"c10::BFloat16", 2},
    {"c10::Half", 2},
    {"long int", 8},
    {"long", 8},
    {"int", 4},
    {"bool", 1},
    {"double", 8},
    {"c10::Float8_e4m3fn", 1},
    {"c10::Float8_e5m2", 1},
    {"c10::Float8_e4m3fnuz", 1},
    {"c10::Float8_e5m2fnuz", 1},
    {"c10::Float8_e8m0fnu", 1},
    {"c10::complex<c10::Half>", 4},
    {"c10::complex<float>", 8},
    {"c10::complex<double>", 16},
    {"unsigned char", 1},
    {"signed char", 1},
    {"short", 2},
    {"short int", 2},
    {"long long", 8},
    {"unsigned short", 2},
    {"short unsigned int", 2},
    {"uint16_t", 2},
    {"unsigned int", 4},
    {"uint32_t", 4},
    {"unsigned long", 8},
    {"long unsigned int", 8},
    {"uint64_t", 8},
    {"c10::qint8", 1},
    {"c10::quint8", 1},
    {"c10::qint32", 4},
};

struct Field {
  string_view key, value;  // the value as it stands, quotes and brackets included
};

// Where the string that opens at `at` closes. Kineto does not escape: a quote closes only if `ends` accepts the
// rest.
template <typename Ends>
size_t string_end(string_view text, size_t at, Ends ends) {
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == '"' || text[i + 1] == '\\'))
      ++i;
    else if (text[i] == '"' && ends(text.substr(i + 1)))
      return i + 1;
  }
  return string_view::npos;
}

bool ends_field(string_view rest) { return rest.empty() || rest.starts_with(", \""); }
bool ends_item(string_view rest) { return rest.starts_with(", ") || rest.starts_with("]") || rest.starts_with(","); }

size_t list_end(string_view text, size_t at) {
  int depth = 0;
  for (size_t i = at; i < text.size(); ++i) {
    if (text[i] == '"') {
      i = string_end(text, i, ends_item);
      if (i == string_view::npos) return i;
      --i;
    } else if (text[i] == '[') {
      ++depth;
    } else if (text[i] == ']' && --depth == 0) {
      return i + 1;
    }
  }
  return string_view::npos;
}

// The field at `*at`, which moves past it; nothing at the end of the text. Unreadable fields are skipped.
std::optional<Field> next_field(string_view text, size_t* at) {
  while (*at < text.size()) {
    size_t begin = text.find('"', *at);
    if (begin == string_view::npos) break;
    size_t colon = text.find("\": ", begin + 1);
    if (colon == string_view::npos) break;
    Field field{text.substr(begin + 1, colon - begin - 1), {}};
    size_t value = colon + 3;
    size_t end = string_view::npos;
    if (value < text.size() && text[value] == '"')
      end = string_end(text, value, ends_field);
    else if (value < text.size() && text[value] == '[')
      end = list_end(text, value);
    else
      end = std::min(text.find(", \"", value), text.size());
    if (end != string_view::npos && ends_field(text.substr(end))) {
      field.value = text.substr(value, end - value);
      *at = end + 2;
      return field;
    }
    size_t next = text.find(", \"", value);
    *at = next == string_view::npos ? text.size() : next + 2;
  }
  return std::nullopt;
}

bool is_json_text(string_view inner) {
  for (size_t i = 0; i < inner.size(); ++i) {
    if (uint8_t(inner[i]) < 0x20 || inner[i] == '"' || uint8_t(inner[i]) == 0x7f) return false;
    if (inner[i] != '\\') continue;
    if (++i == inner.size()) return false;
    if (inner[i] == 'u') {
      for (int digit = 0; digit < 4; ++digit)
        if (++i >= inner.size() || !isxdigit(uint8_t(inner[i]))) return false;
    } else if (string_view("\"\\/bfnrt").find(inner[i]) == string_view::npos) {
      return false;
    }
  }
  return true;
}

bool is_number(string_view text) {
  double value;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && text.back() >= '0' && text.back() <= '9';
}

// Without the spaces between the items of a list.
std::string compact(string_view list) {
  std::string out;
  bool quoted = false;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i] == '"') quoted = !quoted;
    if (quoted || list[i] != ' ') out += list[i];
  }
  return out;
}

void append_key(std::string& out, string_view name) {
  out += ",\"";
  out += name;
  out += "\":";
}

void append_field(std::string& out, string_view name, string_view value, bool list_as_text) {
  if (value.size() < 1 || value == "\"\"") return;
  if (value[0] == '"') {
    string_view inner = value.substr(1, value.size() - 2);
    append_key(out, name);
    if (is_json_text(inner))
      out += value;
    else
      append_json_string(out, inner);
  } else if (value[0] == '[') {
    std::string list = compact(value);
    append_key(out, name);
    if (list_as_text)
      append_json_string(out, string_view(list).substr(1, list.size() - 2));
    else if (list.find_first_not_of("0123456789,-[]") == std::string::npos)
      out += list;
    else
      append_json_string(out, list);
  } else if (value == "true" || value == "false" || is_number(value)) {
    append_key(out, name);
    out += value;
  }
}

// The items of a list, unchanged.
std::vector<string_view> items(string_view list) {
  std::vector<string_view> found;
  if (list.size() < 2) return found;
  string_view inner = list.substr(1, list.size() - 2);
  for (size_t at = 0; at < inner.size();) {
    size_t end;
    if (inner[at] == '"')
      end = string_end(inner, at, [](string_view rest) { return rest.empty() || rest[0] == ','; });
    else if (inner[at] == '[')
      end = list_end(inner, at);
    else
      end = std::min(inner.find(',', at), inner.size());
    if (end == string_view::npos) break;
    found.push_back(inner.substr(at, end - at));
    at = end;
    while (at < inner.size() && (inner[at] == ',' || inner[at] == ' ')) ++at;
  }
  return found;
}

int64_t product(string_view shape) {
  int64_t count = 1;
  for (string_view item : items(shape)) {
    int64_t size = 0;
    std::from_chars(item.data(), item.data() + item.size(), size);
    count *= size;
  }
  return count;
}

bool is_tensor(string_view type) {
  return !type.empty() && type != "Scalar" && type != "ScalarList" && type != "GenericList" && type != "None";
}

// `input_size` = elements of all input tensors; `input_bytes` only where every dtype is known.
void append_inputs(std::string& out, string_view dims, string_view types) {
  auto shapes = items(dims), kinds = items(types);
  int64_t elements = 0, bytes = 0;
  bool known = true;
  for (size_t i = 0; i < std::min(shapes.size(), kinds.size()); ++i) {
    if (kinds[i].size() < 2) continue;
    string_view type = kinds[i].substr(1, kinds[i].size() - 2);
    if (!is_tensor(type)) continue;
    int64_t count = 0, width = 0;
    if (shapes[i].starts_with("[[")) {
      for (string_view one : items(shapes[i])) count += product(one);
    } else if (type != "TensorList") {
      // Lists of tensors come without their dtypes; an empty list looks like a scalar tensor.
      count = product(shapes[i]);
      for (auto& [name, size] : kElementBytes)
        if (name == type) {
          width = size;
          break;
        }
    }
    elements += count;
    known = known && width;
    bytes += count * width;
  }
  append_key(out, "input_size");
  append_int(out, elements);
  if (known) {
    append_key(out, "input_bytes");
    append_int(out, bytes);
  }
  append_key(out, "shapes");
  append_json_string(out, compact(dims));
  append_key(out, "dtypes");
  append_json_string(out, compact(types));
}

template <size_t N>
string_view renamed(const Names<N>& names, string_view key) {
  for (auto& [theirs, ours] : names)
    if (theirs == key) return ours;
  return {};
}

}  // namespace

std::string operator_fragment(string_view text) {
  std::string rest, out;
  string_view dims, types;
  for (size_t at = 0; auto field = next_field(text, &at);) {
    if (field->key == "Input Dims")
      dims = field->value;
    else if (field->key == "Input type")
      types = field->value;
    else if (string_view name = renamed(kOperatorFields, field->key); !name.empty())
      append_field(rest, name, field->value, false);
  }
  if (dims.starts_with("[") && types.starts_with("["))
    append_inputs(out, dims, types);
  else
    out = ",\"input_size\":0";
  return out + rest;
}

std::string device_fragment(string_view text) {
  std::string out;
  for (size_t at = 0; auto field = next_field(text, &at);)
    if (string_view name = renamed(kDeviceFields, field->key); !name.empty())
      append_field(out, name, field->value, true);
  return out;
}

}  // namespace dft::py
