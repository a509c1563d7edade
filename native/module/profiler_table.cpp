#include "module/profiler_table.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <numeric>

#include "format/arguments.hpp"
#include "format/json.hpp"
#include "module/profiler_details.hpp"

namespace dft::py {
namespace {

using std::string_view;

// Above every thread id Linux hands out (2**22), so that a stream never shares a lane with a thread.
constexpr int64_t kLaneBase = 1 << 24;

constexpr string_view kDeviceSorts[] = {"kernel",    "concurrent_kernel",   "gpu_memcpy",      "gpu_memset",
                                        "cuda_sync", "gpu_user_annotation", "mtia_ccp_events", "gpu_pm_counter"};

Sort make_sort(string_view kind) {
  Sort sort{std::string(kind), Class::kHost, kind == "user_annotation", false, false};
  sort.is_operator = sort.annotation || kind == "cpu_op";
  if (kind == "cpu_instant_event") sort.where = Class::kInstant;
  if (kind.ends_with("_runtime") || kind.ends_with("_driver")) sort.where = Class::kLaunch;
  const auto* found = std::find(std::begin(kDeviceSorts), std::end(kDeviceSorts), kind);
  if (found != std::end(kDeviceSorts)) {
    sort.where = Class::kOnDevice;
    sort.is_work = found - std::begin(kDeviceSorts) < 4;
  }
  return sort;
}

bool read_number(string_view text, size_t at, int64_t* out, size_t* end) {
  auto [rest, error] = std::from_chars(text.data() + at, text.data() + text.size(), *out);
  *end = size_t(rest - text.data());
  return error == std::errc();
}

// Cuts `label` and the number after it from the front of `text`.
bool cut_front(string_view& text, string_view label, int64_t* out) {
  size_t end;
  if (!text.starts_with(label) || !read_number(text, label.size(), out, &end)) return false;
  text.remove_prefix(end);
  if (text.starts_with(", ")) text.remove_prefix(2);
  return true;
}

int64_t field(string_view text, string_view label, int64_t fallback) {
  size_t at = text.find(label), end;
  int64_t value;
  return at != string_view::npos && read_number(text, at + label.size(), &value, &end) ? value : fallback;
}

void known_pair(std::string& out, string_view key, int64_t value) {
  if (value != kAbsent) append_arg(out, key, value);
}

void percent(std::string& out, string_view key, int64_t part, int64_t whole) {
  char buf[32];
  append_key(out, key);
  // Four places, which integers give faster than a double does.
  auto parts = uint64_t(double(part) * 1e6 / double(whole) + 0.5);
  char* end = put_uint(buf, parts / 10000);
  *end++ = '.';
  for (unsigned digits = 1000, rest = unsigned(parts % 10000); digits; digits /= 10)
    *end++ = char('0' + rest / digits % 10);
  out.append(buf, end);
}

}  // namespace

uint32_t Texts::number(string_view text) {
  auto found = numbers_.find(text);
  if (found != numbers_.end()) return found->second;
  texts_.emplace_back(text);
  auto i = uint32_t(texts_.size() - 1);
  numbers_.emplace(texts_.back(), i);
  return i;
}

uint16_t Table::sort(string_view kind) {
  for (size_t i = 0; i < sorts_.size(); ++i)
    if (sorts_[i].name == kind) return uint16_t(i);
  sorts_.push_back(make_sort(kind));
  has_devices_ = has_devices_ || sorts_.back().where == Class::kOnDevice;
  return uint16_t(sorts_.size() - 1);
}

void Table::digest(Row& row, string_view text) {
  Class where = sort_of(row).where;
  if (where == Class::kInstant) {
    row.more[0] = field(text, "\"Bytes\": ", 0);
    row.more[1] = field(text, "\"Total Allocated\": ", kAbsent);
    row.more[2] = field(text, "\"Total Reserved\": ", kAbsent);
    row.more[3] = field(text, "\"Addr\": ", kAbsent);
    row.more[4] = field(text, "\"Device Type\": ", 0) != 0;
    row.device = int32_t(field(text, "\"Device Id\": ", -1));
    return;
  }
  size_t position = text.rfind("\"Ev Idx\": ");
  if (position != string_view::npos && text.size() - position < 32) text = text.substr(0, position);
  while (cut_front(text, "\"Record function id\": ", &row.record_function) ||
         cut_front(text, "\"Sequence number\": ", &row.sequence) ||
         cut_front(text, "\"Fwd thread id\": ", &row.forward_thread) ||
         cut_front(text, "\"Python parent id\": ", &row.more[1]) || cut_front(text, "\"Python id\": ", &row.more[0]) ||
         cut_front(text, "\"Python module id\": ", &row.more[2])) {
  }
  if (text.ends_with(", ")) text.remove_suffix(2);
  if (where == Class::kLaunch || where == Class::kOnDevice) {
    constexpr string_view label = "\"correlation\": ";
    size_t at = text.find(label), end;
    if (at != string_view::npos && read_number(text, at + label.size(), &row.correlation, &end)) {
      string_view after = text.substr(end), before = text.substr(0, at);
      if (after.starts_with(", "))
        after.remove_prefix(2);
      else if (before.ends_with(", "))
        before.remove_suffix(2);
      key_.assign(before);
      key_ += after;
      text = key_;
    }
  }
  row.details = text.empty() ? 0 : details_.number(text);
}

void Table::look_over(int64_t trace_start) {
  int64_t first = INT64_MAX, last = INT64_MIN;
  struct Change {
    int64_t moment, bytes;
    bool on_device;
  };
  std::unordered_map<int64_t, std::vector<Change>> changes;
  for (const Row& row : rows) {
    first = std::min(first, row.start);
    last = std::max(last, row.start + row.duration);
    const Sort& sort = sort_of(row);
    if (sort.annotation) {
      string_view name = names[row.name];
      int64_t number;
      size_t end;
      if (name.starts_with("ProfilerStep#") && read_number(name, 13, &number, &end) && end == name.size())
        steps_.push_back({row.start, row.start + row.duration, number});
    } else if (sort.where == Class::kInstant && names[row.name] == "[memory]") {
      changes[row.tid].push_back({row.start, row.more[0], row.more[4] != 0});
    }
  }
  if (trace_start > 0 && trace_start <= first) first = trace_start;
  window_ns_ = std::max<int64_t>(last - first, 1);
  std::sort(steps_.begin(), steps_.end(), [](const Step& a, const Step& b) { return a.start < b.start; });
  for (auto& [tid, list] : changes) {
    std::stable_sort(list.begin(), list.end(), [](const Change& a, const Change& b) { return a.moment < b.moment; });
    Changes& thread = memory_[tid];
    thread.host.push_back(0);
    thread.device.push_back(0);
    for (const Change& change : list) {
      thread.moments.push_back(change.moment);
      thread.host.push_back(thread.host.back() + (change.on_device ? 0 : change.bytes));
      thread.device.push_back(thread.device.back() + (change.on_device ? change.bytes : 0));
    }
  }
}

void Table::attribute() {
  std::vector<uint32_t> operators;
  device_ns_.assign(rows.size(), 0);
  for (uint32_t i = 0; i < rows.size(); ++i) {
    if (!sort_of(rows[i]).is_operator) continue;
    operators.push_back(i);
    if (rows[i].correlation) operators_[rows[i].correlation] = i;
  }
  for (const Row& row : rows) {
    if (!sort_of(row).is_work) continue;
    auto found = operators_.find(row.linked);
    if (row.linked && found != operators_.end()) device_ns_[found->second] += row.duration;
  }
  add_to_parents(operators);
}

// An operator's device time includes that of all it calls on its thread.
void Table::add_to_parents(std::vector<uint32_t>& operators) {
  auto end_of = [&](uint32_t i) { return rows[i].start + rows[i].duration; };
  std::sort(operators.begin(), operators.end(), [&](uint32_t a, uint32_t b) {
    const Row &x = rows[a], &y = rows[b];
    if (x.tid != y.tid) return x.tid < y.tid;
    if (x.start != y.start) return x.start < y.start;
    return x.duration != y.duration ? x.duration > y.duration : a < b;
  });
  std::vector<uint32_t> open;
  std::vector<int64_t> parent(operators.size(), -1);
  for (size_t k = 0; k < operators.size(); ++k) {
    uint32_t i = operators[k];
    if (k && rows[operators[k - 1]].tid != rows[i].tid) open.clear();
    while (!open.empty() && end_of(open.back()) <= rows[i].start) open.pop_back();
    if (!open.empty()) parent[k] = open.back();
    open.push_back(i);
  }
  for (size_t k = operators.size(); k-- > 0;)
    if (parent[k] >= 0) device_ns_[size_t(parent[k])] += device_ns_[operators[k]];
}

const std::string& Table::fragment(const Row& row, bool on_device) {
  std::vector<std::string>& made = fragments_[on_device];
  if (made.size() <= row.details) made.resize(std::max(details_.size(), size_t(row.details) + 1));
  std::string& one = made[row.details];
  if (one.empty() && (row.details || !on_device))
    one = on_device ? device_fragment(details_[row.details]) : operator_fragment(details_[row.details]);
  return one;
}

void Table::finish(const Row& row, int64_t moment) {
  auto after = std::upper_bound(steps_.begin(), steps_.end(), moment,
                                [](int64_t value, const Step& step) { return value < step.start; });
  if (after != steps_.begin() && moment <= after[-1].end) append_arg(out_, "step", after[-1].number);
  out_ += ",\"type\":\"";
  out_ += sort_of(row).name;
  out_ += '"';
}

void Table::memory_args(const Row& row) {
  bool on_device = row.more[4] == 1;
  out_ = on_device ? ",\"device\":1" : ",\"device\":0";
  append_arg(out_, "cpu_memory", on_device ? 0 : row.more[0]);
  out_ += ",\"is_remote\":0";
  append_arg(out_, "device_memory_usage", on_device ? row.more[0] : 0);
  out_ += ",\"input_size\":0,\"total_cpu_percent\":0.0,\"total_device_percent\":0.0,\"dur_ns\":0";
  append_arg(out_, "bytes", row.more[0]);
  known_pair(out_, "total_allocated", row.more[1]);
  known_pair(out_, "total_reserved", row.more[2]);
  known_pair(out_, "addr", row.more[3]);
  append_arg(out_, "device_index", row.device);
  finish(row, row.start);
}

void Table::host_args(const Row& row, size_t index) {
  int64_t host_bytes = 0, device_bytes = 0;
  if (!memory_.empty()) {
    auto thread = memory_.find(row.tid);
    if (thread != memory_.end()) {
      const Changes& c = thread->second;
      auto low = std::lower_bound(c.moments.begin(), c.moments.end(), row.start);
      auto high = std::upper_bound(low, c.moments.end(), row.start + row.duration);
      size_t from = size_t(low - c.moments.begin()), to = size_t(high - c.moments.begin());
      host_bytes = c.host[to] - c.host[from];
      device_bytes = c.device[to] - c.device[from];
    }
  }
  int64_t on_device = device_ns_.empty() ? 0 : device_ns_[index];
  out_ = ",\"device\":0";
  append_arg(out_, "cpu_memory", host_bytes);
  out_ += ",\"is_remote\":0";
  append_arg(out_, "device_memory_usage", device_bytes);
  out_ += fragment(row, false);
  percent(out_, "total_cpu_percent", row.duration, window_ns_);
  percent(out_, "total_device_percent", on_device, window_ns_);
  append_arg(out_, "dur_ns", row.duration);
  if (on_device) append_arg(out_, "device_ns", on_device);
  if (row.correlation) append_arg(out_, "external_id", row.correlation);
  if (!flops.empty()) {
    auto found = flops.find(row.correlation);
    if (found != flops.end() && found->second) append_arg(out_, "flops", found->second);
  }
  if (row.sequence >= 0) append_arg(out_, "sequence", row.sequence);
  if (row.record_function) append_arg(out_, "rf_id", row.record_function);
  if (row.forward_thread) append_arg(out_, "forward_thread", row.forward_thread);
  known_pair(out_, "python_id", row.more[0]);
  known_pair(out_, "python_parent_id", row.more[1]);
  known_pair(out_, "python_module_id", row.more[2]);
  finish(row, row.start);
}

// Names the operator that launched this activity; returns its start, or the row's own.
int64_t Table::add_operator(const Row& row) {
  if (!row.linked) return row.start;
  append_arg(out_, "external_id", row.linked);
  auto found = operators_.find(row.linked);
  if (found == operators_.end()) return row.start;
  const Row& launcher = rows[found->second];
  out_ += ",\"op\":";
  append_json_string(out_, names[launcher.name]);
  return launcher.start;
}

void Table::launch_args(const Row& row) {
  out_ = ",\"device\":0,\"cpu_memory\":0,\"is_remote\":0,\"device_memory_usage\":0,\"input_size\":0";
  percent(out_, "total_cpu_percent", row.duration, window_ns_);
  out_ += ",\"total_device_percent\":0.0";
  append_arg(out_, "dur_ns", row.duration);
  if (row.correlation) append_arg(out_, "correlation", row.correlation);
  out_ += fragment(row, true);
  add_operator(row);
  finish(row, row.start);
}

void Table::device_args(const Row& row) {
  out_ =
      ",\"device\":1,\"cpu_memory\":0,\"is_remote\":0,\"device_memory_usage\":0,\"input_size\":0,\"total_cpu_percent\":0.0";
  percent(out_, "total_device_percent", row.duration, window_ns_);
  append_arg(out_, "dur_ns", row.duration);
  append_arg(out_, "device_index", row.device);
  append_arg(out_, "stream", row.tid);
  if (row.correlation) append_arg(out_, "correlation", row.correlation);
  out_ += fragment(row, true);
  finish(row, add_operator(row));
}

string_view Table::args(size_t index) {
  const Row& row = rows[index];
  switch (sort_of(row).where) {
    case Class::kInstant: memory_args(row); break;
    case Class::kLaunch: launch_args(row); break;
    case Class::kOnDevice: device_args(row); break;
    case Class::kHost: host_args(row, index); break;
  }
  return out_;
}

int64_t Table::lane(const Row& row) {
  if (sort_of(row).where != Class::kOnDevice) return row.tid;
  int64_t lane = (int64_t(row.device) + 1) * kLaneBase + (row.tid & (kLaneBase - 1));
  lanes_.try_emplace(lane, row.device, row.tid);
  return lane;
}

}  // namespace dft::py
