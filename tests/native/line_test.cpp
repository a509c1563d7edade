// Lines as the guides print them, and lines for anything a program may put into them.
#include "write/line.hpp"

#include <random>

#include "check.hpp"
#include "format/io_calls.hpp"
#include "format/json.hpp"
#include "json_reader.hpp"
#include "write/gzip.hpp"

using namespace dft;

namespace {

bool no_memory = false;  // for anything large

}  // namespace

__attribute__((noinline)) void* operator new(size_t size) {
  constexpr size_t kLarge = 8 << 10;
  void* found = no_memory && size > kLarge ? nullptr : malloc(size);
  if (!found) throw std::bad_alloc();
  return found;
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { free(memory); }

namespace {

struct Recorded {
  std::string all;  // header and payload

  Recorded(Kind kind, uint8_t flags, uint64_t id, int64_t parent, uint16_t level, uint64_t start_us, uint64_t dur_us,
           uint32_t name, std::string_view payload) {
    Record r{round8(sizeof(Record) + payload.size()),
             kind,
             flags,
             level,
             id,
             parent,
             start_us * 1000,
             (start_us + dur_us) * 1000,
             name,
             uint32_t(payload.size())};
    all.assign(reinterpret_cast<char*>(&r), sizeof r);
    all += payload;
    all.resize(r.size);
  }
  const Record& operator*() const { return *reinterpret_cast<const Record*>(all.data()); }
};

std::string strings(std::string_view first, std::string_view second, std::string_view rest, int64_t tid = 0) {
  Strings s{tid, uint32_t(first.size()), uint32_t(second.size())};
  std::string out(reinterpret_cast<char*>(&s), sizeof s);
  out += first;
  out += second;
  out += rest;
  return out;
}

class Formatter {
 public:
  Formatter(uint32_t pid, std::string host, bool inc_metadata = true, bool disable_tids = false) {
    g_cpu_ticks = false;  // ticks are nanoseconds, and here those of the epoch
    clock_.start({0, 0}, 0);
    lines.setup(pid, host, inc_metadata, disable_tids, [](uint32_t n) {
      static const std::pair<std::string, std::string> names[] = {{"epoch.block", "pipeline"},
                                                                  {"function.relu.default", "dynamo"},
                                                                  {"checkpoint.init", "checkpoint"},
                                                                  {"quote\" \\ \n\xff", "c"}};
      return names[n];
    });
  }
  std::string line(const Recorded& r, int64_t tid, LineFormatter::Line* facts = nullptr, LikeLines* hints = nullptr) {
    LineFormatter::Line ignored;
    size_t bound = lines.bound(*r);
    std::string out(bound, '\0');
    char* end = lines.write(*r, tid, clock_, out.data(), facts ? facts : &ignored, hints);
    CHECK(size_t(end - out.data()) <= bound);
    out.resize(size_t(end - out.data()));
    return out;
  }
  size_t write(const Recorded& r, int64_t tid, char* text, size_t used, LikeLines* hints) {
    LineFormatter::Line ignored;
    return size_t(lines.write(*r, tid, clock_, text + used, &ignored, hints, used) - text) - used;
  }
  unsigned write_calls(LineFormatter::Calls& calls, LikeLines& hints, WrittenCall* written) {
    return lines.write_calls(calls, clock_, hints, written);
  }
  LineFormatter lines;

 private:
  ClockMap clock_;
};

}  // namespace

TEST(an_iteration_of_the_guide) {
  Formatter f(2877353, "2a702c695247d487");
  LineFormatter::Line facts;
  CHECK_EQ(f.line({Kind::kSpan, 0, 27, 6, 2, 1753123213646764, 828765, 0, ",\"count\":\"1\""}, 2877353, &facts),
           "{\"id\":27,\"name\":\"epoch.block\",\"cat\":\"pipeline\",\"pid\":2877353,\"tid\":2877353,"
           "\"ts\":1753123213646764,\"dur\":828765,\"ph\":\"X\","
           "\"args\":{\"hhash\":\"2a702c695247d487\",\"p_idx\":6,\"count\":\"1\",\"level\":2}}\n");
  CHECK_EQ(facts.ts, 1753123213646764u);
  CHECK(facts.event);
}

TEST(an_init_event_of_the_guide) {
  Formatter f(444541, "2a702c695247d487");
  CHECK_EQ(f.line({Kind::kSpan, 0, 7, 6, 2, 1753136835509693, 100583, 2, ""}, 444541),
           "{\"id\":7,\"name\":\"checkpoint.init\",\"cat\":\"checkpoint\",\"pid\":444541,\"tid\":444541,"
           "\"ts\":1753136835509693,\"dur\":100583,\"ph\":\"X\","
           "\"args\":{\"hhash\":\"2a702c695247d487\",\"p_idx\":6,\"level\":2}}\n");
}

TEST(metadata_of_the_guide) {
  Formatter f(2876815, "2a702c695247d487");
  LineFormatter::Line facts;
  CHECK_EQ(
      f.line({Kind::kMetadata, 0, 6, -1, 1, 5, 0, 0, strings("CM", "epoch.end", "1753123070219202")}, 2876815, &facts),
      "{\"id\":6,\"name\":\"CM\",\"cat\":\"dftracer\",\"pid\":2876815,\"tid\":2876815,\"ph\":\"M\","
      "\"args\":{\"hhash\":\"2a702c695247d487\",\"name\":\"epoch.end\",\"value\":\"1753123070219202\"}}\n");
  CHECK_EQ(facts.ts, 0u);
  CHECK(!facts.event);
}

TEST(the_records_of_the_dynamo_guide) {
  Formatter f(3200613, "f9ff883caaf21863");
  CHECK_EQ(f.lines.metadata_line(1, 3200613, "HH", "tuolumne1004", "f9ff883caaf21863"),
           "{\"id\":1,\"name\":\"HH\",\"cat\":\"dftracer\",\"pid\":3200613,\"tid\":3200613,\"ph\":\"M\","
           "\"args\":{\"hhash\":\"f9ff883caaf21863\",\"name\":\"tuolumne1004\",\"value\":\"f9ff883caaf21863\"}}\n");
  CHECK_EQ(f.lines.metadata_line(2, 3200613, "thread_name", "3200613", "thread_name"),
           "{\"id\":2,\"name\":\"thread_name\",\"cat\":\"dftracer\",\"pid\":3200613,\"tid\":3200613,\"ph\":\"M\","
           "\"args\":{\"hhash\":\"f9ff883caaf21863\",\"name\":\"3200613\",\"value\":\"thread_name\"}}\n");
  std::string relu =
      "{\"id\":8,\"name\":\"function.relu.default\",\"cat\":\"dynamo\",\"pid\":3200613,\"tid\":3200613,"
      "\"ts\":1760934170196754,\"dur\":289,\"ph\":\"X\","
      "\"args\":{\"hhash\":\"f9ff883caaf21863\",\"p_idx\":-1,\"grad_enabled\":0,\"level\":1}}\n";
  CHECK_EQ(f.line({Kind::kSpan, 0, 8, -1, 1, 1760934170196754, 289, 1, ",\"grad_enabled\":0"}, 3200613), relu);
  CHECK_EQ(f.line({Kind::kEvent, 0, 8, -1, 1, 1760934170196754, 289, 0,
                   strings("function.relu.default", "dynamo", ",\"grad_enabled\":0")},
                  3200613),
           relu);
  CHECK_EQ(
      f.lines.event_line(15, 3200613, "end", 1760934170208322, ",\"num_events\":14"),
      "{\"id\":15,\"name\":\"end\",\"cat\":\"dftracer\",\"pid\":3200613,\"tid\":3200613,\"ts\":1760934170208322,"
      "\"dur\":0,\"ph\":\"X\",\"args\":{\"hhash\":\"f9ff883caaf21863\",\"p_idx\":-1,\"num_events\":14,\"level\":1}}\n");
}

TEST(a_counter_an_own_lane_and_absolute_times) {
  Formatter f(5, "h");
  std::string text = f.line({Kind::kCounter, kAbsoluteTime, 3, -1, 1, 77, 0, 0, strings("mem", "gpu", ",\"b\":1")}, 5);
  text.pop_back();
  auto counter = parse_json(text);
  REQUIRE(counter.has_value());
  CHECK_EQ((*counter)["ph"].text, "C");
  CHECK_EQ((*counter)["ts"].integer(), 77);
  CHECK_EQ((*counter)["args"]["b"].integer(), 1);
  text = f.line({Kind::kEvent, kAbsoluteTime | kOtherLane, 3, 2, 4, 77, 8, 0, strings("k", "gpu", "", 12)}, 5);
  text.pop_back();
  auto event = parse_json(text);
  REQUIRE(event.has_value());
  CHECK_EQ((*event)["tid"].integer(), 12);
  CHECK_EQ((*event)["dur"].integer(), 8);
}

TEST(without_args_and_without_thread_ids) {
  Formatter f(5, "h", false, true);
  CHECK_EQ(
      f.line({Kind::kSpan, 0, 1, -1, 1, 10, 3, 0, ",\"k\":1"}, 6),
      "{\"id\":1,\"name\":\"epoch.block\",\"cat\":\"pipeline\",\"pid\":5,\"tid\":5,\"ts\":10,\"dur\":3,\"ph\":\"X\"}\n");
}

TEST(any_bytes_make_a_valid_line_within_its_bound) {
  Formatter f(4294967295u, std::string(16, 'f'));
  std::mt19937 draw(5);
  for (int i = 0; i < 5000; ++i) {
    auto anything = [&] {
      std::string out;
      for (unsigned n = draw() % 60; n; --n) out += char(draw() % 3 ? draw() % 32 : draw());
      return out;
    };
    std::string name = anything(), cat = anything();
    std::string text = f.line({draw() % 2 ? Kind::kEvent : Kind::kMetadata, 0, UINT64_MAX, INT64_MIN, 65535,
                               UINT64_MAX / 1000, 0, 0, strings(name, cat, "")},
                              INT64_MIN);
    text.pop_back();
    auto record = parse_json(text);
    CHECK(record.has_value());
  }
  std::string text = f.line({Kind::kSpan, 0, UINT64_MAX, INT64_MIN, 65535, 0, 1, 3, ""}, INT64_MIN);
  text.pop_back();
  auto record = parse_json(text);
  REQUIRE(record.has_value());
  CHECK_EQ((*record)["name"].text, "quote\" \\ \n\xef\xbf\xbd");
}

TEST(the_parts_of_a_microsecond_do_not_make_a_child_stick_out) {
  Formatter f(5, "h");
  for (uint64_t start = 0; start < 3000; start += 170) {
    for (uint64_t inner = start; inner < 3000; inner += 130) {
      for (uint64_t end = inner; end < 4000; end += 190) {
        Recorded outer(Kind::kSpan, 0, 1, -1, 1, 0, 0, 0, ""), child = outer;
        auto times = [&](Recorded& r, uint64_t a, uint64_t b) {
          auto& record = *reinterpret_cast<Record*>(r.all.data());
          record.start = a;
          record.end = b;
          std::string text = f.line(r, 5);
          text.pop_back();
          auto parsed = parse_json(text);
          return std::pair{(*parsed)["ts"].integer(), (*parsed)["ts"].integer() + (*parsed)["dur"].integer()};
        };
        auto out = times(outer, start, end + 100), in = times(child, inner, end);
        CHECK(out.first <= in.first && in.second <= out.second);
      }
    }
  }
}

TEST(times_around_the_turn_of_a_second_have_all_their_digits) {
  Formatter f(5, "h");
  const uint64_t times[] = {0,
                            7,
                            999'999,
                            1'000'000,
                            1'000'001,
                            9'999'999,
                            10'000'000,
                            1'794'839'946'999'999,
                            1'794'839'947'000'000,
                            1'794'839'947'000'010,
                            1'794'839'946'000'100,
                            UINT64_MAX / 1000 / 1000 * 1000};
  for (uint64_t us : times) {
    std::string text = f.line({Kind::kSpan, 0, 1, -1, 1, us, 3, 0, ""}, 5);
    CHECK(text.find(",\"ts\":" + std::to_string(us) + ",\"dur\":3,") != text.npos);
  }
}

namespace {

std::string io_payload(IoPayload io, const std::vector<int64_t>& values) {
  io.values = uint8_t(values.size());
  std::string out(reinterpret_cast<char*>(&io), sizeof io);
  for (int64_t v : values) out.append(reinterpret_cast<char*>(&v), sizeof v);
  return out;
}

// A number that is often the one before, often near it, and sometimes any.
int64_t next_number(std::mt19937& draw, int64_t before) {
  switch (draw() % 8) {
    case 0: return before + 1;
    case 1: return before + int64_t(draw() % 20000) - 10000;
    case 2: return int64_t(draw() % 12) - 1;
    case 3: return int64_t(uint64_t(draw()) << 32 | draw()) >> draw() % 64;
    default: return before;
  }
}

struct Calls {
  std::mt19937 draw{11};
  uint64_t id = 1, now = 1'794'839'946'999'000, file = 1;
  int64_t number = 4096, parent = -1;
  bool in_turns = false;  // with one file
  bool steady = false;    // and nothing changes much
  size_t turn = 0;

  std::pair<Recorded, int64_t> next() {
    static const Call kinds[] = {Call::open_, Call::pread_, Call::close_, Call::preadv2_, Call::rename_};
    size_t kind = in_turns ? turn++ % 3 : draw() % 40 ? draw() % 4 : 4;
    Call call = kinds[kind];
    if (draw() % 9 == 0 && !in_turns) file = uint64_t(draw()) << 32 | draw() % 4;
    if (draw() % 9 == 0 && !steady) parent = next_number(draw, parent);
    id += draw() % (steady ? 300 : 30) ? 1 : draw() % 100000;
    now += draw() % (steady ? 400 : 40) ? draw() % 5 : draw() % 2'000'000;
    IoPayload io{};
    io.file = in_turns || draw() % 50 ? file : 0;
    io.call = uint16_t(call);
    io.has_ret = in_turns || draw() % 50 != 0;
    auto next = [&](int64_t before) { return steady && draw() % 50 ? 4096 : next_number(draw, before); };
    io.ret = number = next(number);
    io.error = in_turns || draw() % 40 ? 0 : 2;
    std::vector<int64_t> values;
    for (int i = 0; i < 4 && kCalls[io.call].keys[i]; ++i) values.push_back(number = next(number));
    uint64_t dur = draw() % (steady ? 40 : 4) ? draw() % 3 : draw() % 2000;
    auto level = uint16_t(in_turns || draw() % 60 ? 1 : 2);
    return {Recorded(Kind::kIo, 0, id, parent, level, now, dur, uint32_t(kind % 4), io_payload(io, values)),
            in_turns || draw() % 30 ? 5 : 6};
  }
};

}  // namespace

TEST(a_call_that_is_like_an_earlier_one_has_the_line_it_has_by_itself) {
  for (bool inc_metadata : {true, false}) {
    Formatter f(5, "2a702c695247d487", inc_metadata);
    Calls calls;
    LikeLines hints;
    for (int i = 0; i < 20000; ++i) {
      auto [record, tid] = calls.next();
      CHECK_EQ(f.line(record, tid, nullptr, &hints), Formatter(5, "2a702c695247d487", inc_metadata).line(record, tid));
    }
  }
}

namespace {

// What the runs say of a text: the bytes between them come from further back, and they themselves are there.
std::string as_hinted(const std::string& text, const LikeLines& hints) {
  std::string made;
  size_t number = 0;
  auto copy = [&](size_t upto, size_t back) {
    while (made.size() < upto) made += made[made.size() - back];
  };
  for (const LikeLines::Piece& piece : hints.pieces()) {
    made.append(text, made.size(), piece.begin - made.size());
    for (; number < piece.runs; ++number) {
      const LikeRun& run = hints.runs()[number];
      copy(run.from, run.back);
      made.append(text, run.from, run.size);
    }
    copy(piece.end, piece.back);
  }
  return made += text.substr(made.size());
}

std::string literal_text(uint32_t literal) {
  if (literal == 0) return "";
  if (literal < kPairLiteral) return {char(literal - kByteLiteral)};
  return {char('0' + (literal - kPairLiteral) / 10), char('0' + (literal - kPairLiteral) % 10)};
}

}  // namespace

TEST(hints_about_alike_lines_are_true_and_compress_to_the_same_text) {
  Formatter f(5, "2a702c695247d487");
  Calls calls;
  Gzip gzip;
  LikeLines hints;
  size_t alike = 0, all = 0;
  for (int member = 0; member < (DFT_SLOW ? 12 : 40); ++member) {
    f.lines.begin_text();
    hints.clear();
    calls.in_turns = member % 3 != 0;
    calls.steady = member % 3 == 2;
    std::string text(400 << 10, '\0');
    size_t used = 0;
    std::vector<size_t> begins;
    for (int i = 0; i < 1200; ++i) {
      if (calls.draw() % 50 == 0)
        used = size_t(put(text.data() + used, "{\"id\":1,\"name\":\"other\"}\n") - text.data());
      auto [record, tid] = calls.next();
      begins.push_back(used);
      used += f.write(record, tid, text.data(), used, &hints);
    }
    text.resize(used);
    CHECK(as_hinted(text, hints) == text);
    for (const LikeRun& run : hints.runs())
      if (run.last) CHECK_EQ(literal_text(run.first) + literal_text(run.last), text.substr(run.from, run.size));
    for (const LikeLines::Piece& piece : hints.pieces()) alike += calls.steady ? piece.end - piece.begin : 0;
    all += calls.steady ? used : 0;
    std::string whole(gzip.member(text, {}, &hints));
    CHECK(first_member_text(whole, text.size() + 1) == text);
    std::string plain(gzip.member(text, {}));
    CHECK(whole.size() < plain.size() + plain.size() / 30);
    CHECK(!calls.steady || whole != plain);
    // The end of a text by itself, as it is written before the member is full: nothing before it may be used.
    for (size_t at : {size_t(1), begins.size() / 4, begins.size() / 2, begins.size() - 1}) {
      size_t base = begins[at];
      CHECK(first_member_text(gzip.member(std::string_view(text).substr(base), {}, &hints, base), text.size()) ==
            text.substr(base));
    }
  }
  CHECK(2 * alike > all);
}

TEST(a_line_that_found_no_memory_is_not_referred_to) {
  for (int pauses = 1; pauses < 40; pauses += DFT_SLOW ? 3 : 1) {
    Formatter f(5, "2a702c695247d487");
    Calls calls;
    calls.steady = calls.in_turns = true;
    LikeLines hints;
    f.lines.begin_text();
    std::string text(800 << 10, '\0');
    size_t used = 0;
    for (int i = 0; i < 3000; ++i) {
      auto [record, tid] = calls.next();
      no_memory = i / pauses % 2 != 0;
      used += f.write(record, tid, text.data(), used, &hints);
      no_memory = false;
    }
    text.resize(used);
    CHECK(!hints.pieces().empty());
    CHECK(as_hinted(text, hints) == text);
  }
}

// As the writer does it: some calls at once, and each record that is like no earlier one by itself.
TEST(calls_written_at_once_have_the_lines_they_have_by_themselves) {
  constexpr uint64_t kRing = 1 << 16, kText = 4 << 20, kFirstId = 1'000'000;
  Formatter f(5, "2a702c695247d487");
  Calls calls;
  LikeLines hints;
  Gzip gzip;
  size_t at_once = 0, all = 0;
  for (int turn = 0; turn < (DFT_SLOW ? 9 : 30); ++turn) {
    f.lines.begin_text();
    hints.clear();
    calls.in_turns = turn % 3 != 0;
    calls.steady = turn % 3 == 2;
    // A ring lies twice in a row; here it begins near its end.
    std::vector<uint64_t> ring(2 * kRing / sizeof(uint64_t));
    auto* data = reinterpret_cast<uint8_t*>(ring.data());
    const uint64_t begin = 5 * kRing - 2000;
    uint64_t head = begin, next_id = kFirstId;
    std::string expected;
    while (head - begin + 200 < kRing) {
      Recorded record = calls.next().first;
      auto& r = *reinterpret_cast<Record*>(record.all.data());
      bool has_id = calls.draw() % 20 == 0;
      if (!has_id) r.id = next_id++;
      expected += Formatter(5, "2a702c695247d487").line(record, 5);
      if (!has_id) r.id = kNumberedLater;
      for (uint64_t i = 0; i < r.size; ++i) {
        uint64_t place = (head + i) & (kRing - 1);
        data[place] = data[place + kRing] = uint8_t(record.all[i]);
      }
      head += r.size;
    }
    std::string text(kText, '\0');
    LineFormatter::Calls some{data, kRing - 1, begin, head, kFirstId, 5, text.data(), 0, kText / 2};
    WrittenCall written[LineFormatter::kMaxCalls];
    while (some.read < head) {
      unsigned n = f.write_calls(some, hints, written);
      at_once += n;
      all += n;
      if (n) continue;
      ++all;
      auto& r = *reinterpret_cast<Record*>(data + (some.read & (kRing - 1)));
      if (r.id == kNumberedLater) r.id = some.next_id++;
      Recorded record(r.kind, 0, 0, 0, 0, 0, 0, 0, "");
      record.all.assign(reinterpret_cast<char*>(&r), r.size);
      some.used += f.write(record, 5, text.data(), some.used, &hints);
      some.read += r.size;
    }
    text.resize(some.used);
    CHECK_EQ(text, expected);
    CHECK_EQ(as_hinted(text, hints), text);
    MemberFacts facts;
    std::string_view member = gzip.member(text, facts, &hints, 0);
    CHECK_EQ(first_member_text(member, text.size() + 1), text);
  }
  CHECK(2 * at_once > all);
}

TEST_MAIN
