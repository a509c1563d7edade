#include "record/clock.hpp"

#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "check.hpp"

using dft::Anchor;
using dft::ClockMap;

// A counter of 2.9 ticks a nanosecond whose rate the kernel's clock sees change by a few parts in a million.
static uint64_t mono_at(uint64_t ticks) {
  double t = double(ticks) / 2.9;
  return uint64_t(t + 2000 * std::sin(t / 3e10));
}

TEST(accurate_and_monotone_while_anchors_come_and_are_thinned_out) {
  dft::g_cpu_ticks = true;
  ClockMap map;
  const uint64_t origin = 1000000, epoch = 1'700'000'000'000'000'000;
  map.start({origin, mono_at(origin)}, epoch + mono_at(origin));
  std::mt19937_64 draw(1);
  const uint64_t step = 290'000'000;  // 100 ms
  uint64_t now = origin;
  for (int i = 0; i < 6000; ++i) {  // ten minutes
    now += step;
    map.add({now, mono_at(now)});
    uint64_t t = now - draw() % step;
    CHECK(std::llabs(int64_t(map.to_epoch_ns(t) - epoch) - int64_t(mono_at(t))) < 1000);
    uint64_t old = origin + draw() % (now - origin);
    CHECK(std::llabs(int64_t(map.to_epoch_ns(old) - epoch) - int64_t(mono_at(old))) < 5000);
    CHECK(map.to_epoch_ns(old) <= map.to_epoch_ns(old + 3));
  }
  CHECK(std::fabs(map.ns_per_tick() - 1 / 2.9) < 1e-6);
  uint64_t before = 0;
  for (uint64_t t = origin; t < now; t += step / 7) {
    uint64_t mapped = map.to_epoch_ns(t);
    CHECK(mapped >= before);
    before = mapped;
  }
}

TEST(microseconds_are_those_of_the_nanoseconds) {
  for (bool cpu_ticks : {true, false}) {
    dft::g_cpu_ticks = cpu_ticks;
    ClockMap map;
    const uint64_t origin = 5'000'000'000, epoch = 1'700'000'000'123'456'789;
    map.start({origin, mono_at(origin)}, epoch);
    std::mt19937_64 draw(7);
    uint64_t now = origin;
    for (int i = 0; i < 2000; ++i) {
      now += 290'000'000;
      map.add({now, mono_at(now)});
      uint64_t t = now - draw() % (now - origin / 2), before = map.to_epoch_us(t);
      double ns = double(int64_t(map.to_epoch_ns(t) - epoch)), us = double(int64_t(before - epoch / 1000)) * 1000;
      CHECK(us <= ns + 1000 && us > ns - 1001);
      if (!cpu_ticks) CHECK_EQ(before, map.to_epoch_ns(t) / 1000);
      for (uint64_t later = t; later < t + 20'000; later += 1 + draw() % 1000) {
        uint64_t mapped = map.to_epoch_us(later);
        CHECK(mapped >= before);
        before = mapped;
      }
    }
  }
}

// A counter of 1 MHz, and slower ones.
TEST(ticks_may_be_as_long_as_microseconds) {
  dft::g_cpu_ticks = true;
  for (uint64_t ns_per_tick : {998, 1000, 1001, 4000}) {
    ClockMap map;
    map.start({0, 0}, 1'700'000'000'000'000'000);
    map.add({10'000'000, 10'000'000 * ns_per_tick});
    for (uint64_t t = 0; t < 20'000'000; t += 99'991) CHECK_EQ(map.to_epoch_us(t), map.to_epoch_ns(t) / 1000);
  }
}

TEST(anchors_that_go_back_are_ignored) {
  dft::g_cpu_ticks = true;
  ClockMap map;
  map.start({1000, 1000}, 1000);
  map.add({3'000'000'000, 1'000'000'000});
  Anchor last = map.last();
  map.add({2'000'000'000, 999'000'000});
  CHECK_EQ(map.last().ticks, last.ticks);
  CHECK_EQ(map.to_epoch_ns(3'000'000'000), 1'000'000'000u);
}

TEST(a_second_of_real_anchors_agrees_with_the_kernel) {
  dft::init_clock();
  ClockMap map;
  Anchor first = dft::take_anchor();
  map.start(first, first.mono_ns);
  for (int i = 0; i < 20; ++i) {
    usleep(50000);
    map.add(dft::take_anchor());
    uint64_t before = dft::monotonic_ns();
    uint64_t t = dft::ticks();
    uint64_t after = dft::monotonic_ns();
    uint64_t mapped = map.to_epoch_ns(t);
    // However long we were off the CPU in between, the truth lies between the two readings.
    CHECK(mapped + 10000 >= before);
    CHECK(mapped <= after + 10000);
  }
}

TEST(what_was_written_stays_where_it_was) {
  dft::g_cpu_ticks = true;
  ClockMap map;
  const uint64_t origin = 1000000;
  // Anchors are read with some nanoseconds of noise, rounds come when they come.
  std::mt19937_64 draw(3);
  auto anchor = [&](uint64_t t) { return Anchor{t, mono_at(t) + draw() % 200}; };
  map.start(anchor(origin), mono_at(origin));
  std::vector<std::pair<uint64_t, uint64_t>> written;
  uint64_t now = origin + 2'900'000;
  for (int i = 0; i < 2000; ++i) {
    map.add(anchor(now));
    CHECK(std::llabs(int64_t(map.to_epoch_ns(now)) - int64_t(mono_at(now))) < 1000);
    uint64_t read_at = now + draw() % 2'900'000;  // records still come while the round is written
    for (int k = 0; k < 5; ++k) {
      uint64_t t = now + draw() % (read_at - now + 1);
      written.emplace_back(t, map.to_epoch_ns(t));
    }
    map.fix(read_at);
    // 60 s of them: before anything is thinned out.
    if (now < origin + 174'000'000'000)
      for (auto& [t, mapped] : written) CHECK_EQ(map.to_epoch_ns(t), mapped);
    now = read_at + 1 + draw() % (i % 50 ? 290'000'000 : 2'900'000'000);
  }
}

TEST(a_span_formatted_later_contains_one_formatted_earlier) {
  dft::init_clock();
  ClockMap map;
  Anchor first = dft::take_anchor();
  map.start(first, first.mono_ns);
  usleep(2000);
  for (int i = 0; i < 100; ++i) {
    uint64_t outer_start = dft::ticks(), inner_start = dft::ticks();
    uint64_t inner_end = dft::ticks();
    map.add(dft::take_anchor());
    uint64_t inner[2] = {map.to_epoch_ns(inner_start), map.to_epoch_ns(inner_end)};
    map.fix(dft::ticks());
    usleep(2000);
    uint64_t outer_end = dft::ticks();
    map.add(dft::take_anchor());
    CHECK(map.to_epoch_ns(outer_start) <= inner[0]);
    CHECK(inner[0] <= inner[1]);
    CHECK(inner[1] <= map.to_epoch_ns(outer_end));
    map.fix(dft::ticks());
  }
}

TEST_MAIN
