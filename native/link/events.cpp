#include "json.hpp"

namespace dft::link {
namespace {

// Lanes may be named by texts: "stream 7", "Spans".
bool lane(Cursor& c, int64_t& out) {
  if (!c.peek('"')) return c.integer(out);
  std::string_view text;
  if (!c.string(text)) return false;
  out = -1;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] < '0' || text[i] > '9') continue;
    if (text.size() - i > 18) return false;
    out = 0;
    for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) out = out * 10 + (text[i] - '0');
    break;
  }
  return true;
}

struct Event {
  std::string_view ph, name, cat;
  int64_t pid = -1, tid = -1, ts = 0, dur = 0, rf = -1, external = -1, correlation = -1, seq = -1, fw_tid = -1,
          device = -1, stream = -1;
  std::string_view args;
};

bool read_args(Cursor& c, Event& e) {
  c.blanks();
  const char* begin = c.at();
  if (!c.peek('{')) return c.skip();
  const bool good = c.object([&](std::string_view key) {
    switch (key.size()) {
      case 18:
        if (key == "Record function id") return lane(c, e.rf);
        break;
      case 11:
        if (key == "External id" || key == "external id") return lane(c, e.external);
        if (key == "correlation") return lane(c, e.correlation);
        break;
      case 15:
        if (key == "Sequence number") return lane(c, e.seq);
        break;
      case 13:
        if (key == "Fwd thread id") return lane(c, e.fw_tid);
        break;
      case 6:
        if (key == "device") return lane(c, e.device);
        if (key == "stream") return lane(c, e.stream);
        break;
      default: break;
    }
    return c.skip();
  });
  e.args = {begin, size_t(c.at() - begin)};
  return good;
}
}  // namespace

bool parse_events(std::string_view text, Events& out) {
  Cursor c(text);
  while (true) {
    Event e;
    const bool good = c.object([&](std::string_view key) {
      if (key == "ph") return c.string(e.ph);
      if (key == "name") return c.string(e.name);
      if (key == "cat") return c.string(e.cat);
      if (key == "pid") return lane(c, e.pid);
      if (key == "tid") return lane(c, e.tid);
      if (key == "ts") return c.thousandths(e.ts);
      if (key == "dur") return c.thousandths(e.dur);
      if (key == "args") return read_args(c, e);
      return c.skip();
    });
    if (!good) return false;
    const auto begin = e.args.empty() ? 0 : e.args.data() - text.data();
    const auto end = begin + int64_t(e.args.size());
    if (e.ph == "X") {
      out.name.push_back(out.names.code(e.name));
      out.cat.push_back(out.cats.code(e.cat));
      out.pid.push_back(e.pid);
      out.tid.push_back(e.tid);
      out.ts.push_back(e.ts);
      out.dur.push_back(e.dur);
      out.rf.push_back(e.rf);
      out.external.push_back(e.external);
      out.correlation.push_back(e.correlation);
      out.seq.push_back(e.seq);
      out.fw_tid.push_back(e.fw_tid);
      out.device.push_back(e.device);
      out.stream.push_back(e.stream);
      out.args_begin.push_back(begin);
      out.args_end.push_back(end);
    } else if (e.ph == "M" && e.name == "thread_name") {
      out.thread_tid.push_back(e.tid);
      out.thread_begin.push_back(begin);
      out.thread_end.push_back(end);
    }
    if (!c.take(',')) break;
  }
  c.blanks();
  return c.done();
}

}  // namespace dft::link
