#include "sweep.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "columns.hpp"

namespace dft::load {

void SelfTime::update(const std::int64_t* id, const std::int64_t* parent, const std::int64_t* dur, std::size_t n,
                      std::int64_t* self) {
  // Runs of siblings dominate: keep the current parent's sum out of the table.
  std::int64_t open = kMissing, sum = 0;
  const auto flush = [&] {
    if (open != kMissing && sum != 0) pending_[open] += sum;
    open = kMissing;
    sum = 0;
  };
  for (std::size_t i = 0; i < n; ++i) {
    std::int64_t children = 0;
    if (id[i] == open) {
      children = sum;
      open = kMissing;
      sum = 0;
    }
    if (!pending_.empty()) {
      const auto it = pending_.find(id[i]);
      if (it != pending_.end()) {
        children += it->second;
        pending_.erase(it);
      }
    }
    self[i] = std::max<std::int64_t>(0, dur[i] - children);
    const std::int64_t p = parent[i];
    if (p < 0) continue;
    if (p != open) {
      flush();
      open = p;
    }
    sum += dur[i];
  }
  flush();
}

void nest(const std::int64_t* tid, const std::int64_t* ts, const std::int64_t* dur, std::size_t n,
          std::int64_t* parent_row, std::int64_t* self) {
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  // Equal intervals: the one written later encloses, as parents are written after their children.
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (tid[a] != tid[b]) return tid[a] < tid[b];
    if (ts[a] != ts[b]) return ts[a] < ts[b];
    if (dur[a] != dur[b]) return dur[a] > dur[b];
    return a > b;
  });
  std::vector<std::size_t> stack;
  for (std::size_t k = 0; k < n; ++k) {
    const std::size_t i = order[k];
    if (!stack.empty() && tid[stack.back()] != tid[i]) stack.clear();
    while (!stack.empty() && ts[stack.back()] + dur[stack.back()] <= ts[i]) stack.pop_back();
    self[i] = dur[i];
    parent_row[i] = stack.empty() ? -1 : static_cast<std::int64_t>(stack.back());
    if (!stack.empty()) {
      const std::size_t up = stack.back();
      const std::int64_t inside = std::min(ts[i] + dur[i], ts[up] + dur[up]) - ts[i];
      self[up] = std::max<std::int64_t>(0, self[up] - inside);
    }
    stack.push_back(i);
  }
}

void stack(const std::int64_t* lane, const std::int64_t* start, const std::int64_t* end, std::size_t n,
           std::int64_t slack, std::int32_t* row) {
  std::vector<std::pair<std::int64_t, std::int32_t>> open;  // the spans around: their end and row
  std::vector<std::int64_t> busy_until;                     // of each row
  for (std::size_t i = 0; i < n; ++i) {
    if (i == 0 || lane[i] != lane[i - 1]) {
      open.clear();
      busy_until.clear();
    }
    while (!open.empty() && open.back().first <= start[i]) open.pop_back();
    // One that crosses what is open goes on a row of its own, and holds nothing.
    const bool nested = open.empty() || end[i] <= open.back().first + slack;
    std::size_t at = open.empty() ? 0 : static_cast<std::size_t>(open.back().second) + 1;
    while (at < busy_until.size() && busy_until[at] > start[i] + slack) ++at;
    if (at == busy_until.size()) busy_until.push_back(0);
    busy_until[at] = end[i];
    row[i] = static_cast<std::int32_t>(at);
    if (nested) open.emplace_back(end[i], row[i]);
  }
}

Segments timeline(const std::int64_t* ts, const std::int64_t* dur, const std::uint8_t* cls, std::size_t n,
                  const std::uint8_t* rule, std::size_t stages, std::uint8_t none) {
  std::vector<std::uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (ts[a] != ts[b]) return ts[a] < ts[b];
    if (dur[a] != dur[b]) return dur[a] > dur[b];
    return a > b;  // parents are written after their children
  });
  Segments out;
  const auto emit = [&](std::int64_t from, std::int64_t to, std::uint8_t stage) {
    if (to <= from) return;
    if (!out.to.empty() && out.to.back() == from && out.stage.back() == stage) {
      out.to.back() = to;
      return;
    }
    out.from.push_back(from);
    out.to.push_back(to);
    out.stage.push_back(stage);
  };
  struct Open {
    std::int64_t end;
    std::uint8_t stage;
  };
  std::vector<Open> stack;
  std::int64_t now = 0;
  const auto close_until = [&](std::int64_t t) {
    while (!stack.empty() && stack.back().end <= t) {
      emit(now, stack.back().end, stack.back().stage);
      now = std::max(now, stack.back().end);
      stack.pop_back();
    }
  };
  for (const std::uint32_t i : order) {
    close_until(ts[i]);
    if (!stack.empty()) emit(now, ts[i], stack.back().stage);
    now = std::max(now, ts[i]);
    const std::uint8_t above = stack.empty() ? none : stack.back().stage;
    stack.push_back({ts[i] + dur[i], rule[cls[i] * stages + above]});
  }
  close_until(std::numeric_limits<std::int64_t>::max());
  return out;
}

}  // namespace dft::load
