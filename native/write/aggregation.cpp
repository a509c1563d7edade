#include "write/aggregation.hpp"

#include <fcntl.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <climits>
#include <cstdio>
#include <optional>
#include <tuple>

#include "format/arguments.hpp"
#include "record/warn_once.hpp"

namespace dft {
namespace {

bool same_text(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

// `%` stands for any text, `_` for any character, as in SQL.
bool like(std::string_view text, std::string_view pattern) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] == '%') {
    for (size_t at = 0; at <= text.size(); ++at)
      if (like(text.substr(at), pattern.substr(1))) return true;
    return false;
  }
  if (text.empty() || (pattern[0] != '_' && !same_text(text.substr(0, 1), pattern.substr(0, 1)))) return false;
  return like(text.substr(1), pattern.substr(1));
}

constexpr const char* kFields = "cat, name, ts, dur, rank, app";

class RuleParser {
 public:
  RuleParser(std::string_view text, const RuleProcess& process) : process_(process), left_(text) { next(); }

  Rule whole(std::string* error) {
    Rule rule = either();
    if (error_.empty() && !token_.empty()) fail("'" + token_ + "' is not expected");
    *error = error_;
    return error_.empty() ? rule : Rule();
  }

 private:
  void fail(std::string why) {
    if (error_.empty()) error_ = std::move(why);
    left_ = {};
    token_.clear();
  }

  void next() {
    while (!left_.empty() && isspace(static_cast<unsigned char>(left_[0]))) left_.remove_prefix(1);
    quoted_ = false;
    token_.clear();
    if (left_.empty()) return;
    char c = left_[0];
    if (c == '\'' || c == '"') {
      size_t end = left_.find(c, 1);
      if (end == std::string_view::npos) return fail("a quote is not closed");
      token_ = left_.substr(1, end - 1);
      quoted_ = true;
      left_.remove_prefix(end + 1);
      return;
    }
    constexpr std::string_view kSigns = "=!<>", kAlone = "(){},";
    size_t n = 1;
    if (kSigns.find(c) != std::string_view::npos) {
      while (n < left_.size() && kSigns.find(left_[n]) != std::string_view::npos) ++n;
    } else if (kAlone.find(c) == std::string_view::npos) {
      auto ends = [&](char d) {
        return isspace(static_cast<unsigned char>(d)) || (kSigns.find(d) != std::string_view::npos) ||
               kAlone.find(d) != std::string_view::npos;
      };
      while (n < left_.size() && !ends(left_[n])) ++n;
    }
    token_ = left_.substr(0, n);
    left_.remove_prefix(n);
  }

  bool word(const char* w) {
    if (quoted_ || !same_text(token_, w)) return false;
    next();
    return true;
  }

  Rule either() {
    Rule a = both();
    while (error_.empty() && word("OR")) a = [a, b = both()](const RuleFacts& e) { return a(e) || b(e); };
    return a;
  }

  Rule both() {
    Rule a = one();
    while (error_.empty() && word("AND")) a = [a, b = one()](const RuleFacts& e) { return a(e) && b(e); };
    return a;
  }

  Rule one() {
    if (word("NOT")) return [a = one()](const RuleFacts& e) { return !a(e); };
    if (!word("(")) return comparison();
    Rule inner = either();
    if (!word(")")) fail("a bracket is not closed");
    return inner;
  }

  Rule comparison() {
    std::string field = token_;
    if (field.starts_with("tags.")) {
      fail("'" + field + "': rules cannot use the arguments of events, only " + kFields);
      return {};
    }
    // A process's own facts are the same for all its events, so such a comparison is made once.
    if (field == "rank")
      return once(number_comparison([rank = double(process_.rank)](const RuleFacts&) { return rank; }));
    if (field == "app")
      return once(text_comparison(field, [app = process_.app](const RuleFacts&) { return std::string_view(app); }));
    if (field == "ts") return number_comparison([](const RuleFacts& e) { return double(e.ts_us); });
    if (field == "dur") return number_comparison([](const RuleFacts& e) { return double(e.dur_us); });
    if (field == "cat") return text_comparison(field, [](const RuleFacts& e) { return e.category; });
    if (field == "name") return text_comparison(field, [](const RuleFacts& e) { return e.name; });
    fail(field.empty() ? "a field is missing" : "'" + field + "' is none of " + kFields);
    return {};
  }

  static Rule once(const Rule& rule) {
    return [answer = rule && rule({})](const RuleFacts&) { return answer; };
  }

  template <class Of>
  Rule text_comparison(const std::string& field, Of of) {
    next();
    std::string op = token_;
    if (word("LIKE")) return [of, pattern = value()](const RuleFacts& e) { return like(of(e), pattern); };
    if (word("IN"))
      return [of, listed = list()](const RuleFacts& e) {
        return std::any_of(listed.begin(), listed.end(), [&](const std::string& v) { return same_text(of(e), v); });
      };
    next();
    std::string right = value();
    if (!is_comparison(op)) return {};
    if (op != "==" && op != "!=") {
      fail(field + " is text: it can only be compared with == and !=, LIKE and IN");
      return {};
    }
    return [of, right, same = op == "=="](const RuleFacts& e) { return same_text(of(e), right) == same; };
  }

  template <class Of>
  Rule number_comparison(Of of) {
    next();
    std::string op = token_;
    if (word("IN"))
      return [of, listed = list()](const RuleFacts& e) {
        return std::any_of(listed.begin(), listed.end(), [&](const std::string& v) { return of(e) == to_number(v); });
      };
    next();
    std::string right = value();
    if (!is_comparison(op)) return {};
    std::optional<double> limit = to_number(right);
    if (!limit) {
      fail("'" + right + "' is not a number");
      return {};
    }
    return [of, op, limit = *limit](const RuleFacts& e) {
      double v = of(e);
      if (op == "==") return v == limit;
      if (op == "!=") return v != limit;
      if (op == "<") return v < limit;
      if (op == ">") return v > limit;
      return op == "<=" ? v <= limit : v >= limit;
    };
  }

  std::string value() {
    if (token_.empty() && !quoted_) fail("a value is missing");
    std::string text = token_;
    next();
    return text;
  }

  std::vector<std::string> list() {
    std::vector<std::string> out;
    if (!word("{")) {
      fail("IN needs {a, b}");
      return out;
    }
    while (error_.empty() && !word("}")) {
      out.push_back(value());
      word(",");
    }
    return out;
  }

  bool is_comparison(const std::string& op) {
    for (const char* known : {"==", "!=", "<", ">", "<=", ">="})
      if (op == known) return true;
    fail("'" + op + "' is no comparison");
    return false;
  }

  static std::optional<double> to_number(const std::string& text) {
    // By hand: the C++ library's way needs libm, and C's the program's locale.
    std::string_view left = text;
    bool negative = left.starts_with('-');
    if (negative) left.remove_prefix(1);
    int exponent = 0;
    if (size_t e = left.find_first_of("eE"); e != left.npos) {
      const char* stop = left.data() + left.size();
      auto [end, problem] = std::from_chars(left.data() + e + 1, stop, exponent);
      if (problem != std::errc() || end != stop || exponent < -300 || exponent > 300) return {};
      left = left.substr(0, e);
    }
    double v = 0;
    bool any = false, fraction = false;
    for (char c : left) {
      if (c == '.' && !fraction) {
        fraction = true;
        continue;
      }
      if (c < '0' || c > '9') return {};
      any = true;
      v = 10 * v + (c - '0');
      exponent -= fraction;
    }
    if (!any) return {};
    for (; exponent > 0; --exponent) v *= 10;
    for (; exponent < 0; ++exponent) v /= 10;
    return negative ? -v : v;
  }

  const RuleProcess& process_;
  std::string_view left_;
  std::string token_, error_;
  bool quoted_ = false;
};

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && isspace(static_cast<unsigned char>(s.front()))) s.remove_prefix(1);
  while (!s.empty() && isspace(static_cast<unsigned char>(s.back()))) s.remove_suffix(1);
  return s;
}

// Without the comment at its end, which no quotes surround.
std::string_view without_comment(std::string_view line) {
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (quote) {
      if (line[i] == quote) quote = 0;
    } else if (line[i] == '\'' || line[i] == '"') {
      quote = line[i];
    } else if (line[i] == '#') {
      return line.substr(0, i);
    }
  }
  return line;
}

std::optional<std::string> whole_file(const std::string& path) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  std::string out;
  char buffer[4096];
  ssize_t n;
  while ((n = read(fd, buffer, sizeof buffer)) > 0 && out.size() < (1 << 20)) out.append(buffer, size_t(n));
  close(fd);
  if (n < 0) return {};
  return out;
}

RuleProcess this_process(const Settings& settings) {
  RuleProcess out;
  for (const auto& [key, value] : settings.facts)
    if (key == "rank") std::from_chars(value.data(), value.data() + value.size(), out.rank);
  char path[PATH_MAX];
  ssize_t n = readlink("/proc/self/exe", path, sizeof path);
  if (n <= 0) return out;
  std::string_view executable(path, size_t(n));
  out.app = executable.substr(executable.rfind('/') + 1);
  return out;
}

}  // namespace

Rule parse_rule(std::string_view text, const RuleProcess& process, std::string* error) {
  return RuleParser(text, process).whole(error);
}

std::string RuleFile::read(std::string_view text, const RuleProcess& process) {
  std::vector<Rule>* into = nullptr;
  for (int number = 1; !text.empty(); ++number) {
    size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = trimmed(without_comment(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
    std::string where = "line " + std::to_string(number) + ": ";
    if (line.empty() || line == "---") continue;
    if (line[0] != '-') {
      size_t colon = line.find(':');
      std::string_view key = trimmed(line.substr(0, colon));
      std::string_view rest = colon == std::string_view::npos ? "?" : trimmed(line.substr(colon + 1));
      if ((key != "inclusion" && key != "exclusion") || (!rest.empty() && rest != "[]"))
        return where + "neither a list `inclusion:` or `exclusion:` nor a rule `- \"...\"`";
      into = key == "inclusion" ? &inclusion : &exclusion;
      continue;
    }
    if (!into) return where + "a rule before `inclusion:` or `exclusion:`";
    std::string_view rule = trimmed(line.substr(1));
    // Quotes around the whole rule are YAML's; those inside it are its own.
    if (rule.size() > 1 && (rule[0] == '"' || rule[0] == '\'') && rule.back() == rule[0] &&
        rule.find(rule[0], 1) == rule.size() - 1)
      rule = rule.substr(1, rule.size() - 2);
    std::string error;
    Rule parsed = parse_rule(rule, process, &error);
    if (!parsed) return where + error;
    into->push_back(std::move(parsed));
  }
  return {};
}

bool RuleFile::matches(const RuleFacts& event) const {
  auto one_of = [&](const std::vector<Rule>& rules) {
    return std::any_of(rules.begin(), rules.end(), [&](const Rule& rule) { return rule(event); });
  };
  return one_of(inclusion) && !one_of(exclusion);
}

void Aggregation::setup(const Settings& settings) {
  enabled_ = settings.aggregate;
  selective_ = settings.aggregate_selected;
  interval_us_ = std::max<uint64_t>(settings.interval_ms, 1) * 1000;
  if (!enabled_ || !selective_) return;
  rules_ = {};
  // DFTracer's rule where a file is missing.
  std::optional<std::string> text =
      settings.aggregation_file.empty() ? "inclusion:\n- dur < 100" : whole_file(settings.aggregation_file);
  std::string wrong = text ? rules_.read(*text, this_process(settings)) : "it cannot be read";
  if (wrong.empty() && rules_.inclusion.empty()) wrong = "it includes nothing";
  if (wrong.empty()) return;
  enabled_ = false;
  warn_once("DFTRACER_AGGREGATION_FILE " + settings.aggregation_file + ": " + wrong + "; every event is written");
}

Aggregation::Sum& Aggregation::of(uint32_t name, uint64_t file, uint64_t ts_us) {
  Key key{ts_us / interval_us_, file, name};
  if (auto known = sums_.find(key); known != sums_.end()) return known->second;
  if (with_file_ >= kMaxWithFile) key.file = 0;
  with_file_ += key.file != 0;
  return sums_[key];
}

void Aggregation::add(Sum& sum, uint64_t us, int64_t bytes, bool failed) {
  ++sum.calls;
  sum.us += us;
  sum.min_us = std::min(sum.min_us, us);
  sum.max_us = std::max(sum.max_us, us);
  if (bytes > 0) sum.bytes += uint64_t(bytes);
  sum.errors += failed;
  ++sum.histogram[std::min<size_t>(size_t(std::bit_width(us)), sum.histogram.size() - 1)];
}

std::vector<std::pair<Aggregation::Key, Aggregation::Sum>> Aggregation::take() {
  std::vector<std::pair<Key, Sum>> out(sums_.begin(), sums_.end());
  sums_.clear();
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first.interval, a.first.name, a.first.file) <
           std::tie(b.first.interval, b.first.name, b.first.file);
  });
  return out;
}

std::string Aggregation::arguments(const Key& key, const Sum& sum) const {
  std::string out;
  if (key.file) {
    char hex[17];
    snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(key.file));
    append_arg(out, "fhash", std::string_view(hex, 16));
  }
  append_arg(out, "dft_cnt", int64_t(sum.calls));
  append_arg(out, "dur_min", int64_t(sum.min_us));
  append_arg(out, "dur_max", int64_t(sum.max_us));
  append_arg(out, "dur_sum", int64_t(sum.us));
  if (sum.bytes) append_arg(out, "bytes", int64_t(sum.bytes));
  if (sum.errors) append_arg(out, "errors", int64_t(sum.errors));
  if (interval_us_ != 1000000) append_arg(out, "interval_us", int64_t(interval_us_));
  out += ",\"dur_hist\":{";
  for (size_t bits = 0, listed = 0; bits < sum.histogram.size(); ++bits) {
    if (!sum.histogram[bits]) continue;
    if (listed++) out += ',';
    out += '"' + std::to_string(bits ? uint64_t{1} << (bits - 1) : 0) + "\":" + std::to_string(sum.histogram[bits]);
  }
  out += '}';
  return out;
}

}  // namespace dft
