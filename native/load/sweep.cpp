#include "sweep.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "columns.hpp"

namespace dft::load {

namespace {
constexpr size_t kFew = 12;
}

int64_t SelfTime::take(int64_t id) {
  for (Pending& p : few_)
    if (p.id == id) {
      const int64_t sum = p.sum;
      p = few_.back();
      few_.pop_back();
      return sum;
    }
  if (more_.empty()) return 0;
  const auto it = more_.find(id);
  if (it == more_.end()) return 0;
  const int64_t sum = it->second;
  more_.erase(it);
  return sum;
}

void SelfTime::add(int64_t parent, int64_t sum) {
  for (Pending& p : few_)
    if (p.id == parent) {
      p.sum += sum;
      return;
    }
  const auto it = more_.empty() ? more_.end() : more_.find(parent);
  if (it != more_.end())
    it->second += sum;
  else if (few_.size() < kFew)
    few_.push_back({parent, sum});
  else
    more_.emplace(parent, sum);
}

void SelfTime::update(const int64_t* id, const int64_t* parent, const int64_t* dur, size_t n, int64_t* self) {
  // Runs of siblings dominate: keep the current parent's sum out of the table.
  int64_t open = kMissing, sum = 0;
  const auto flush = [&] {
    if (open != kMissing && sum != 0) add(open, sum);
    open = kMissing;
    sum = 0;
  };
  for (size_t i = 0; i < n; ++i) {
    int64_t children = 0;
    if (id[i] == open) {
      children = sum;
      open = kMissing;
      sum = 0;
    }
    children += take(id[i]);
    self[i] = std::max<int64_t>(0, dur[i] - children);
    const int64_t p = parent[i];
    if (p < 0) continue;
    if (p != open) {
      flush();
      open = p;
    }
    sum += dur[i];
  }
  flush();
}

void nest(const int64_t* tid, const int64_t* ts, const int64_t* dur, size_t n, int64_t* parent_row, int64_t* self) {
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  // Equal intervals: the one written later encloses, as parents are written after their children.
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (tid[a] != tid[b]) return tid[a] < tid[b];
    if (ts[a] != ts[b]) return ts[a] < ts[b];
    if (dur[a] != dur[b]) return dur[a] > dur[b];
    return a > b;
  });
  std::vector<size_t> stack;
  for (size_t k = 0; k < n; ++k) {
    const size_t i = order[k];
    if (!stack.empty() && tid[stack.back()] != tid[i]) stack.clear();
    while (!stack.empty() && ts[stack.back()] + dur[stack.back()] <= ts[i]) stack.pop_back();
    self[i] = dur[i];
    parent_row[i] = stack.empty() ? -1 : int64_t(stack.back());
    if (!stack.empty()) {
      const size_t up = stack.back();
      const int64_t inside = std::min(ts[i] + dur[i], ts[up] + dur[up]) - ts[i];
      self[up] = std::max<int64_t>(0, self[up] - inside);
    }
    stack.push_back(i);
  }
}

void stack(const int64_t* lane, const int64_t* start, const int64_t* end, size_t n, int64_t slack, int32_t* row) {
  std::vector<std::pair<int64_t, int32_t>> open;  // the spans around: their end and row
  std::vector<int64_t> busy_until;                // of each row
  for (size_t i = 0; i < n; ++i) {
    if (i == 0 || lane[i] != lane[i - 1]) {
      open.clear();
      busy_until.clear();
    }
    while (!open.empty() && open.back().first <= start[i]) open.pop_back();
    // One that crosses an open span goes on a separate row, and contains nothing.
    const bool nested = open.empty() || end[i] <= open.back().first + slack;
    size_t at = open.empty() ? 0 : size_t(open.back().second) + 1;
    while (at < busy_until.size() && busy_until[at] > start[i] + slack) ++at;
    if (at == busy_until.size()) busy_until.push_back(0);
    busy_until[at] = end[i];
    row[i] = int32_t(at);
    if (nested) open.emplace_back(end[i], row[i]);
  }
}

}  // namespace dft::load
