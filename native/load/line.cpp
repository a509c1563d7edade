#include "line.hpp"

#include <algorithm>

#include "format/envelope.hpp"

namespace dft::load {
namespace {

// Between the duration and the first argument that differs from row to row.
constexpr const char* kHost = envelope::kEventArgs.data();
constexpr size_t kHostSize = envelope::kEventArgs.size(), kHashSize = 16;

// Moves over the text if it is at s.
[[gnu::always_inline]] inline bool pass(const char*& s, std::string_view text) {
  if (std::memcmp(s, text.data(), text.size()) != 0) return false;
  s += text.size();
  return true;
}

}  // namespace

LineScanner::LineScanner(Dictionaries& d, const Filter& filter, bool keep_text)
    : filter_(&filter),
      keep_text_(keep_text),
      name_(d.name),
      cat_(d.cat),
      hhash_(d.hhash),
      fhash_(d.fhash),
      dictionaries_(&d),
      start_code_(name_(envelope::kStart)),
      end_code_(name_(envelope::kEndOfTrace)),
      tracer_code_(cat_(envelope::kTracerCategory)) {}

// Takes over what is as in the last row, from the second argument on, which is at p; returns how many are known then.
[[gnu::always_inline]] inline size_t LineScanner::repeated_arguments(const char*& p, const char* end, Shape& shape) {
  const size_t size = shape.last_end[shape.remembered - 1];
  if (size_t(end - p) < size) return 1;
  const size_t same = equal_bytes(p, shape.last, size);
  size_t n = 1;
  for (; n < shape.remembered && shape.last_end[n] <= same; ++n) {
    const Argument& a = shape.arguments[n];
    if (a.kind == Argument::Kind::file)
      row_.fhash = int32_t(shape.last_value[n]);
    else
      row_.slot(a.field) = shape.last_value[n];
    take(a.field);
  }
  if (n > 1) p += shape.last_end[n - 1];
  return n;
}

// Arguments of a row that looks like the last of its kind; from the first difference on they are read one by one.
inline bool LineScanner::known_arguments(const char*& p, const char* end, Shape& shape) {
  const char* second = nullptr;  // where the second one begins, as long as what follows is worth remembering
  for (size_t n = 0; n < shape.known; ++n) {
    if (n == 1) {
      second = p;
      if (shape.remembered > 1) {
        n = repeated_arguments(p, end, shape);
        if (n == shape.remembered && shape.last_closes) return true;
        if (*p == ' ') p = blanks(p);
        shape.remember(n);
        if (n == shape.known) break;
      }
    }
    Argument& a = shape.arguments[n];
    if (!a.at(p)) return more_arguments(p, end, &shape, n);
    const char* s = p + a.size;
    int64_t v = 0;
    switch (a.kind) {
      case Argument::Kind::number:
      case Argument::Kind::quoted_number: {
        if (!integer(s, v, a.digits)) return more_arguments(p, end, &shape, n);
        if (a.kind == Argument::Kind::quoted_number && *s++ != '"') return more_arguments(p, end, &shape, n);
        if ((*s != ',' && *s != '}') || v == kMissing) return more_arguments(p, end, &shape, n);
        row_.slot(a.field) = v;
        take(a.field);
        break;
      }
      case Argument::Kind::file:
        if (s[16] == '"' && equal_long(s, last_file_, 16)) {
          row_.fhash = last_file_code_;
          s += 17;
        } else {
          const char* const from = s;
          s = quote_or_escape(s, end);
          if (s >= end || *s != '"') return more_arguments(p, end, &shape, n);
          row_.fhash = fhash_(std::string_view(from, size_t(s - from)));
          if (s - from == 16) {
            std::memcpy(last_file_, from, 16);
            last_file_code_ = row_.fhash;
          }
          ++s;
        }
        v = row_.fhash;
        take(f_fhash);
        break;
      case Argument::Kind::other:
        if (!skip_value(s, end)) return false;
        rest(p, s);
        if (second) shape.keep(second, n);
        second = nullptr;
        break;
    }
    p = s;
    bool over = *p == '}';
    if (!over && *p != ',') {
      p = blanks(p);
      over = *p == '}';
      if (!over && *p != ',') return false;
    }
    ++p;
    if (!over && *p == ' ') p = blanks(p);
    if (second) {
      shape.last_end[n] = uint8_t(std::min(size_t(p - second), Shape::kLongestLast + 1));
      shape.last_value[n] = v;
      if (over) shape.keep(second, n + 1, true);
    }
    if (over) return true;
  }
  return more_arguments(p, end, &shape, shape.known);
}

bool LineScanner::wanted() {
  const Filter& f = *filter_;
  const int64_t from = row_.ts;
  if (from > f.ts_max || from < f.ts_min) return false;
  if (!f.pids.empty() && !(row_.have(f_pid) && f.pids.contains(row_.pid))) return false;
  const auto check = [](std::vector<int8_t>& known, const std::vector<std::string>& list, const Dictionary& d,
                        int32_t code) {
    if (list.empty()) return true;
    if (code < 0) return false;
    const auto i = size_t(code);
    if (known.size() <= i) known.resize(i + 64, 0);
    if (known[i] == 0) {
      const std::string_view text = d.at(i);
      known[i] = 2;
      for (const std::string& s : list)
        if (s == text) known[i] = 1;
    }
    return known[i] == 1;
  };
  if (!check(name_ok_, f.names, dictionaries_->name, row_.name)) return false;
  if (!check(cat_ok_, f.cats, dictionaries_->cat, row_.have(f_cat) ? row_.cat : kNoCode)) return false;
  const auto inside = [](bool there, int64_t v, int64_t low, int64_t high) {
    return low == kMissing || (there && v >= low && v <= high);
  };
  return inside(row_.have(f_step), row_.step, f.step_min, f.step_max) &&
         inside(row_.have(f_epoch), row_.epoch, f.epoch_min, f.epoch_max);
}

// A row as we write it: fixed keys in a fixed order, no blanks. False, and nothing taken, otherwise.
inline bool LineScanner::usual_head(const char*& p, const char* end, Shape*& shape) {
  const char* s = p;
  if (!pass(s, envelope::kId) || !integer(s, row_.id, id_digits_) || !pass(s, envelope::kNameText)) return false;
  shape = &shapes_.of(s);
  if (!shape->at(s, end) && !learn_head(s, end, *shape)) return false;
  s += shape->head_size;
  row_.name = shape->name;
  row_.cat = shape->cat;
  row_.pid = shape->pid;
  if (!integer(s, row_.tid, tid_digits_) || !pass(s, envelope::kTs)) return false;
  const int64_t high = eight_digits(s), low = eight_digits(s + 8);
  if (high >= 0 && low >= 0 && s[16] == ',') {
    row_.ts = high * 100000000 + low;
    s += 16;
  } else if (!integer(s, row_.ts)) {
    return false;
  }
  if (!pass(s, envelope::kDuration) || !integer(s, row_.dur)) return false;
  row_.ph = 'X';
  row_.has = 1u << f_id | 1u << f_name | 1u << f_cat | 1u << f_pid | 1u << f_tid | 1u << f_ts | 1u << f_dur;
  static_assert(sizeof last_host_ == kHostSize + kHashSize + 2);
  if (size_t(end - s) > sizeof last_host_ && equal_long(s, last_host_, sizeof last_host_)) {
    row_.hhash = last_host_code_;
    take(f_hhash);
    p = s + sizeof last_host_;
    return true;
  }
  if (size_t(end - s) <= sizeof last_host_ || std::memcmp(s, kHost, kHostSize) != 0) return false;
  const char* const hash = s + kHostSize;
  if (quote_or_escape(hash, end) != hash + kHashSize || hash[kHashSize + 1] != ',') return false;
  row_.hhash = last_host_code_ = hhash_(std::string_view(hash, kHashSize));
  take(f_hhash);
  std::memcpy(last_host_, s, sizeof last_host_);
  p = s + sizeof last_host_;
  return true;
}

// The row whose name begins at s is the new shape's first; its arguments are not known yet.
bool LineScanner::learn_head(const char* s, const char* end, Shape& shape) {
  const char* const from = s;
  const auto text = [&](Interner& in, int32_t& code) {
    const char* const begin = s;
    s = quote_or_escape(s, end);
    if (s >= end || *s != '"') return false;
    code = in(std::string_view(begin, size_t(s - begin)));
    return true;
  };
  shape.head_size = 0;
  shape.forget(0);
  if (!text(name_, shape.name) || !pass(s, envelope::kCategoryAfterText)) return false;
  if (!text(cat_, shape.cat) || !pass(s, envelope::kPidAfterText)) return false;
  if (!integer(s, shape.pid) || !pass(s, envelope::kTid)) return false;
  const auto size = size_t(s - from);
  if (size > Shape::kLongestHead) return false;
  std::memcpy(shape.head, from, size);
  shape.head_size = size;
  return true;
}

bool LineScanner::object(const char*& p, const char* end, Columns& out) {
  clear_row();
  if (Shape* shape = nullptr; usual_head(p, end, shape)) {
    if (*p == ' ') p = blanks(p);
    if (!known_arguments(p, end, *shape) || *p != '}') return false;
    ++p;
    return finish_row(nullptr, end, out);
  }
  clear_row();
  const char* late_args = nullptr;
  return any_object(p, end, late_args) && finish_row(late_args, end, out);
}

bool LineScanner::finish_row(const char* late_args, const char* end, Columns& out) {
  if (late_args && !arguments(late_args, end)) return false;
  if (!row_.have(f_name)) return false;

  const bool tracer_event =
      row_.have(f_cat) && row_.cat == tracer_code_ && (row_.name == start_code_ || row_.name == end_code_);
  if (row_.ph == 'M' || tracer_event) {
    Meta m;
    m.kind = dictionaries_->name.at(size_t(row_.name));
    std::string b;
    m.key = plain(meta_key_, b);
    m.value = plain(meta_value_, b);
    if (!rest_.empty()) m.rest = rest_ + '}';
    m.pid = row_.have(f_pid) ? row_.pid : kMissing;
    m.tid = row_.have(f_tid) ? row_.tid : kMissing;
    m.ts = row_.have(f_ts) ? row_.ts : kMissing;
    meta_key_ = meta_value_ = {};
    out.meta.push_back(std::move(m));
    if (row_.ph == 'M') {
      ++counts.meta;
      return true;
    }
  }
  if (!row_.have(f_ts)) return false;
  if (!row_.have(f_dur)) {
    row_.dur = 0;
    take(f_dur);
  }
  const int64_t limit = filter_->time_limit;
  if (row_.ts > limit || row_.ts < -limit || row_.dur > limit || row_.dur < -limit) return false;
  if (filter_->any && !wanted()) {
    ++counts.filtered;
    return true;
  }
  if (!rest_.empty()) {
    rest_ += '}';
    out.args_text.append(rest_.data(), rest_.size());
  }
  row_.has &= ~filter_->left_out;
  out.push(row_);
  ++counts.events;
  counts.counters += row_.ph == 'C';
  return true;
}

// The text of a record, on a line of its own.
void LineScanner::keep(const char* from, const char* to, Columns& out) {
  const size_t before = out.records_text.size();
  out.records_text.append(from, size_t(to - from));
  char* const copy = out.records_text.data() + before;
  std::replace(copy, copy + (to - from), '\n', ' ');
  out.records_text.append("\n", 1);
}

size_t LineScanner::scan(const char* text, size_t size, Columns& out) {
  const char* p = text;
  const char* const end = text + size;
  while (p < end) {
    const char c = *p;
    if (c == '\n' || c == ' ' || c == '\t' || c == '\r' || c == ',' || c == '[' || c == ']' || c == '\0') {
      ++p;
      continue;
    }
    const char* const line = p;
    ++counts.lines;
    const size_t rows = out.rows;
    const size_t text_size = out.args_text.size();
    const size_t metas = out.meta.size();
    const LineCounts before = counts;
    // A record never spans lines, so a bad one costs its own line and nothing else.
    bool ok = c == '{' && object(p, end, out) && p <= end;
    const char* const record_end = p;
    if (ok) {
      while (p < end && (*p == ' ' || *p == ',' || *p == '\r' || *p == '\t' || *p == ']')) ++p;
      ok = (p >= end || *p == '\n' || *p == '{') && size_t(p - line) <= kLineLimit;
    }
    if (ok) {
      if (keep_text_) keep(line, record_end, out);
      continue;
    }
    if (out.rows != rows || out.meta.size() != metas || out.args_text.size() != text_size) {
      out.meta.resize(metas);
      out.cut(rows);
      out.args_text.resize_down(text_size);
    }
    counts = before;
    meta_key_ = meta_value_ = {};
    const auto* next = static_cast<const char*>(std::memchr(line, '\n', size_t(end - line)));
    if (!next) return size_t(end - line);
    ++counts.bad;
    p = next + 1;
  }
  return 0;
}

}  // namespace dft::load
