// Many producers, one writer: nothing lost, nothing doubled, everything counted.
#include <sys/resource.h>

#include <atomic>
#include <set>
#include <thread>

#include "check.hpp"
#include "recording.hpp"

using namespace dft;

static const uint32_t kEvent = intern("event", "test");
static const uint32_t kOuter = intern("outer", "test");

template <typename Body>
static void in_threads(int count, Body body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
  for (auto& t : threads) t.join();
}

TEST(many_threads_lose_and_double_nothing) {
  for (bool compress : {true, false}) {
    Scratch dir;
    configure(small_settings(dir, compress));
    REQUIRE(start_session(dir / "run", "app"));
    const int threads = 8, each = DFT_TSAN ? 600 : DFT_SLOW ? 2000 : 30000;
    in_threads(threads, [&](int) {
      for (int n = 0; n < each; ++n) record(kEvent, n);
    });
    finish_session();
    Trace trace = read_trace(dir / (compress ? "run.pfw.gz" : "run.pfw"));
    CHECK(trace.closed);
    auto numbers = trace.numbers("event");
    CHECK_EQ(numbers.size(), size_t(threads));
    for (auto& [tid, ns] : numbers) {
      CHECK_EQ(ns.size(), size_t(each));
      CHECK(counts_up(ns));
    }
    CHECK_EQ(trace.end()["name"].text, "end");
    CHECK_EQ(trace.end()["args"]["num_events"].integer(), int64_t(trace.records.size() - 1));
    CHECK_EQ(trace.end()["args"]["dropped"].integer(), 0);
    CHECK_EQ(trace.named("thread_name").size(), size_t(threads + 1));
    std::set<int64_t> ids;
    for (auto& r : trace.records) ids.insert(r["id"].integer());
    CHECK_EQ(ids.size(), trace.records.size());
    CHECK(dir.files(".ring").empty());
  }
}

static constexpr int kNested = DFT_SLOW ? 100 : 500;

TEST(parents_and_levels_per_thread) {
  Scratch dir;
  configure(small_settings(dir));
  REQUIRE(start_session(dir / "run", "app"));
  in_threads(4, [](int) {
    static const char outer_key = 0;
    for (int n = 0; n < kNested; ++n) {
      ThreadState* t = current_thread();
      push_frame(t, &outer_key, 0);
      record(kEvent, 2 * n);
      record(kEvent, 2 * n + 1);
      Frame f;
      REQUIRE(pop_frame(t->stack, &outer_key, 0, &f));
      emit_span(t, kOuter, f, ticks(), "");
    }
  });
  finish_session();
  Trace trace = read_trace(dir / "run.pfw.gz");
  std::map<int64_t, const Json*> outer;
  for (auto& r : trace.records)
    if (r["name"].text == "outer") outer[r["id"].integer()] = &r;
  CHECK_EQ(outer.size(), size_t(4 * kNested));
  for (auto& r : trace.named("event")) {
    auto parent = outer.find(r["args"]["p_idx"].integer());
    REQUIRE(parent != outer.end());
    const Json& p = *parent->second;
    CHECK_EQ(p["tid"].integer(), r["tid"].integer());
    CHECK_EQ(p["args"]["level"].integer(), 1);
    CHECK_EQ(p["args"]["p_idx"].integer(), -1);
    CHECK_EQ(r["args"]["level"].integer(), 2);
    // Both ends are cut to whole microseconds from a map that anchors refine.
    CHECK(p["ts"].integer() <= r["ts"].integer() + 1);
    CHECK(r["ts"].integer() + r["dur"].integer() <= p["ts"].integer() + p["dur"].integer() + 1);
  }
}

TEST(what_finds_no_room_is_counted_exactly) {
  Scratch dir;
  Settings s = small_settings(dir);
  s.max_stall_us = 0;
  configure(s);
  REQUIRE(start_session(dir / "run", "app"));
  const int threads = 3, each = DFT_SLOW ? 5000 : 200000;
  in_threads(threads, [&](int) {
    for (int n = 0; n < each; ++n) record(kEvent, n);
  });
  finish_session();
  Trace trace = read_trace(dir / "run.pfw.gz");
  int64_t dropped = trace.end()["args"]["dropped_ring_full"].integer();
  int64_t kept = int64_t(trace.named("event").size());
  CHECK_EQ(kept + dropped, int64_t(threads) * each);
  CHECK_EQ(trace.end()["args"]["dropped"].integer(), dropped);
  CHECK_EQ(trace.end()["args"]["num_events"].integer(), int64_t(trace.records.size() - 1));
  for (auto& [tid, ns] : trace.numbers("event"))
    for (size_t i = 1; i < ns.size(); ++i) CHECK(ns[i - 1] < ns[i]);
}

#if !DFT_SLOW  // sanitizers need the address space for themselves, and qemu does not limit it
static rlim_t address_space_used() {
  unsigned long pages = 0;
  FILE* f = fopen("/proc/self/statm", "r");
  REQUIRE(f && fscanf(f, "%lu", &pages) == 1);
  fclose(f);
  return rlim_t(pages) * 4096;
}

TEST(threads_without_memory_for_a_ring_drop_each_event_once) {
  Scratch dir;
  Settings s = small_settings(dir);
  s.ring_size = 64 << 20;
  s.ring_dir = "/proc/nowhere";
  configure(s);
  REQUIRE(start_session(dir / "run", "app"));
  record(kEvent, -1);
  const int threads = 3, each = 500;
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i)
    all.emplace_back([&] {
      std::string warm_up(100, 'x');  // the allocator's part for this thread
      for (++ready; !go.load();) usleep(100);
      for (int n = 0; n < each; ++n) record(kEvent, n);
    });
  while (ready.load() < threads) usleep(100);
  rlimit before;
  REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
  rlimit tight{address_space_used() + (1 << 20), before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_AS, &tight) == 0);
  go = true;
  for (auto& t : all) t.join();
  REQUIRE(setrlimit(RLIMIT_AS, &before) == 0);
  std::thread([&] { record(kEvent, each); }).join();  // there is memory again
  finish_session();
  Trace trace = read_trace(dir / "run.pfw.gz");
  CHECK_EQ(trace.named("event").size(), 2u);
  CHECK_EQ(trace.end()["args"]["dropped_ring_full"].integer(), threads * each);
}
#endif

TEST(payloads_of_every_size_come_back_whole) {
  Scratch dir;
  Settings s = small_settings(dir);
  s.ring_size = 1 << 20;
  s.member_size = 64 << 10;
  configure(s);
  REQUIRE(start_session(dir / "run", "app"));
  std::vector<size_t> sizes;
  for (size_t n : {size_t(0), size_t(1), size_t(7), size_t(8), size_t(50000), size_t(1) << 18, size_t(340000),
                   size_t(1) << 20, size_t(5) << 20})
    for (size_t more : {0, 1, 2, 40})
      if (!DFT_SLOW || (more < 2 && n <= s.ring_size)) sizes.push_back(n + more);
  Frame f{nullptr, nullptr, ticks(), 0, -1, 1, 0};
  for (size_t i = 0; i < sizes.size(); ++i) {
    record(kEvent, int64_t(i), ",\"s\":\"" + std::string(sizes[i], char('a' + i % 26)) + "\"");
    ThreadState* t = current_thread();
    f.id = new_id(t);
    // Control characters take six times their room in the file.
    std::string raw(sizes[i] / 4, '\x01');
    emit_strings(t, Kind::kMetadata, 0, f, 0, 0, "CM", std::to_string(i), raw);
  }
  REQUIRE(flush_session(600000));  // finishing waits half a minute and no longer
  finish_session();
  Trace trace = read_trace(dir / "run.pfw.gz");
  auto events = trace.named("event");
  auto metadata = trace.named("CM");
  REQUIRE(events.size() == sizes.size() && metadata.size() == sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    CHECK_EQ(events[i]["args"]["n"].integer(), int64_t(i));
    CHECK(events[i]["args"]["s"].text == std::string(sizes[i], char('a' + i % 26)));
    CHECK(metadata[i]["args"]["value"].text == std::string(sizes[i] / 4, '\x01'));
  }
}

// Memory of a ring comes by the piece, from its thread or from the writer, whoever is first.
TEST(rings_grow_while_they_are_filled) {
  Scratch dir;
  Settings s = small_settings(dir);
  s.ring_size = 4 << 20;
  configure(s);
  REQUIRE(start_session(dir / "run", "app"));
  const int threads = 3, each = DFT_SLOW ? 400 : 2500;  // of 4 KiB: several pieces, or more than twice around
  const std::string text = ",\"s\":\"" + std::string(4000, 'x') + "\"";
  in_threads(threads, [&](int) {
    for (int n = 0; n < each; ++n) record(kEvent, n, text);
  });
  REQUIRE(flush_session(600000));
  finish_session();
  Trace trace = read_trace(dir / "run.pfw.gz");
  auto numbers = trace.numbers("event");
  CHECK_EQ(numbers.size(), size_t(threads));
  for (auto& [tid, ns] : numbers) {
    CHECK_EQ(ns.size(), size_t(each));
    CHECK(counts_up(ns));
  }
  CHECK_EQ(trace.end()["args"]["dropped"].integer(), 0);
}

TEST(more_threads_at_once_than_were_expected) {
  Scratch dir;
  configure(small_settings(dir));
  REQUIRE(start_session(dir / "run", "app"));
  const int threads = DFT_SLOW ? 40 : 400;
  std::atomic<int> ready{0};
  in_threads(threads, [&](int k) {
    record(kEvent, k);
    // All are there before any ends: none gets another's ring.
    for (++ready; ready.load() < threads;) usleep(1000);
  });
  finish_session();
  Trace trace = read_trace(dir / "run.pfw.gz");
  CHECK_EQ(trace.named("event").size(), size_t(threads));
  CHECK_EQ(trace.end()["args"]["dropped"].integer(), 0);
}

TEST(short_lived_threads_share_rings) {
  Scratch dir;
  configure(small_settings(dir));
  REQUIRE(start_session(dir / "run", "app"));
  const int batches = DFT_SLOW ? 60 : 1250, at_once = 8;
  for (int i = 0; i < batches; ++i) {
    in_threads(at_once, [&](int k) { record(kEvent, i * at_once + k); });
    // On a busy machine the writer may not have run for a second, and a ring is free when it has emptied it.
    if (i % 20 == 19) REQUIRE(flush_session(600000));
  }
  Stats stats = session_stats();
  CHECK(stats.rings < 200);
  finish_session();
  Trace trace = read_trace(dir / "run.pfw.gz");
  std::set<int64_t> seen;
  for (auto& r : trace.named("event")) seen.insert(r["args"]["n"].integer());
  CHECK_EQ(seen.size(), size_t(batches * at_once));
  CHECK_EQ(trace.named("event").size(), seen.size());
}

TEST_MAIN
