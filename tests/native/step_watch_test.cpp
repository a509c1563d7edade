// When steps have become slower: steps with known times, a change at a known place.
#include <cmath>
#include <functional>
#include <random>

#include "check.hpp"
#include "write/black_box.hpp"

using dft::StepWatch;

namespace {

// The steps at which a change is seen.
std::vector<int> seen(int steps, const std::function<double(int)>& seconds) {
  StepWatch watch;
  std::vector<int> out;
  for (int i = 0; i < steps; ++i)
    if (watch.add(int64_t(seconds(i) * 1e6))) out.push_back(i);
  return out;
}

struct Noise {
  std::mt19937 random{7};
  std::normal_distribution<double> normal{0, 1};
  double operator()(double spread) { return std::exp(spread * normal(random)); }
};

}  // namespace

TEST(a_slowdown_is_seen_within_ten_steps) {
  for (double spread : {0.0, 0.01, 0.03, 0.06, 0.1}) {
    for (int at : {40, 100, 1000}) {
      Noise noise;
      auto found = seen(at + 40, [&](int i) { return 0.1 * noise(spread) * (i < at ? 1 : 1.3); });
      CHECK(found.size() == 1);
      CHECK(found[0] >= at && found[0] < at + 10);
    }
  }
}

TEST(steps_that_do_not_change_are_left_alone) {
  Noise noise;
  CHECK(seen(20000, [&](int) { return 0.1 * noise(0.02); }).empty());
  CHECK(seen(20000, [&](int) { return 0.1 * noise(0.1); }).empty());
  // Four workers: every fourth step waits for the next round of batches.
  CHECK(seen(20000, [&](int i) { return (i % 4 ? 0.1 : 0.4) * noise(0.05); }).empty());
  // Faster than before is no trouble.
  CHECK(seen(2000, [&](int i) { return (i < 1000 ? 0.1 : 0.05) * noise(0.02); }).empty());
}

TEST(times_that_alternate_may_take_longer) {
  Noise noise;
  auto found = seen(1100, [&](int i) { return (i % 4 ? 0.1 : 0.4) * noise(0.02) * (i < 1000 ? 1 : 1.3); });
  CHECK(!found.empty() && found[0] >= 1000 && found[0] < 1040);
}

TEST(one_long_step_is_seen_at_once_and_its_like_later_is_not) {
  Noise noise;
  auto found = seen(400, [&](int i) { return i % 100 == 99 ? 2.0 : 0.1 * noise(0.02); });
  CHECK(found == std::vector<int>{99});
}

TEST_MAIN
