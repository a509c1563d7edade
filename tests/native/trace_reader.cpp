#include "trace_reader.hpp"

#include <dirent.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "check.hpp"

Scratch::Scratch() : owner_(getpid()) {
  std::string name = (std::filesystem::temp_directory_path() / "dftracer-native-XXXXXX").string();
  REQUIRE(mkdtemp(name.data()));
  path_ = name;
}

Scratch::~Scratch() {
  std::error_code ignored;
  if (getpid() == owner_) std::filesystem::remove_all(path_, ignored);
}

std::vector<std::string> Scratch::files(const std::string& suffix) const {
  std::vector<std::string> out;
  for (auto& entry : std::filesystem::recursive_directory_iterator(path_))
    if (entry.is_regular_file() && entry.path().string().ends_with(suffix)) out.push_back(entry.path());
  std::sort(out.begin(), out.end());
  return out;
}

std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

namespace {

template <typename T>
T load(const std::string& bytes, size_t at) {
  T v;
  memcpy(&v, bytes.data() + at, sizeof v);
  return v;
}

std::string inflate_member(std::string_view member, size_t text_size) {
  std::string text(text_size + 1, '\0');
  z_stream z{};
  REQUIRE(inflateInit2(&z, 31) == Z_OK);
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(member.data()));
  z.avail_in = uInt(member.size());
  z.next_out = reinterpret_cast<Bytef*>(text.data());
  z.avail_out = uInt(text.size());
  CHECK_EQ(inflate(&z, Z_FINISH), Z_STREAM_END);
  CHECK_EQ(z.avail_in, 0u);
  text.resize(z.total_out);
  inflateEnd(&z);
  return text;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    size_t n = text.find('\n');
    REQUIRE(n != text.npos);  // every line, the last too, ends
    out.push_back(text.substr(0, n));
    text.remove_prefix(n + 1);
  }
  return out;
}

void check_facts(const Member& m) {
  CHECK_EQ(m.text.size(), size_t(m.text_size));
  uint64_t first = 0, last = 0, lines = 0;
  for (auto line : lines_of(m.text)) {
    ++lines;
    if (line == "[" || line == "]") continue;
    auto record = parse_json(line);
    if (!record || !record->has("ts")) continue;
    auto ts = uint64_t((*record)["ts"].integer());
    first = first ? std::min(first, ts) : ts;
    last = std::max(last, ts);
  }
  CHECK_EQ(lines, m.lines);
  CHECK_EQ(first, m.first_ts);
  CHECK_EQ(last, m.last_ts);
}

}  // namespace

std::vector<Member> read_members(const std::string& path) {
  std::string bytes = read_bytes(path);
  std::vector<Member> out;
  size_t at = 0;
  while (at < bytes.size()) {
    REQUIRE(bytes.size() - at >= 56);
    REQUIRE(bytes.compare(at, 4, "\x1f\x8b\x08\x04") == 0);
    REQUIRE(load<uint16_t>(bytes, at + 10) == 36 && bytes.compare(at + 12, 2, "DF") == 0);
    Member m{load<uint32_t>(bytes, at + 16), load<uint32_t>(bytes, at + 20), load<uint32_t>(bytes, at + 24),
             load<uint64_t>(bytes, at + 32), load<uint64_t>(bytes, at + 40), {}};
    REQUIRE(m.member_size >= 56 && at + m.member_size <= bytes.size());
    m.text = inflate_member(std::string_view(bytes).substr(at, m.member_size), m.text_size);
    check_facts(m);
    at += m.member_size;
    out.push_back(std::move(m));
  }
  return out;
}

std::string read_text(const std::string& path) {
  if (!path.ends_with(".gz")) return read_bytes(path);
  std::string text;
  for (auto& m : read_members(path)) text += m.text;
  return text;
}

Trace read_trace(const std::string& path) {
  Trace out;
  std::string text = read_text(path);
  auto lines = lines_of(text);
  if (lines.empty() || lines[0] != "[") {
    check::failed(__FILE__, __LINE__, path + " does not begin with [: " + text.substr(0, 300));
    exit(1);
  }
  std::set<int64_t> ids;
  for (size_t i = 1; i < lines.size(); ++i) {
    if (lines[i] == "]" && i + 1 == lines.size()) {
      out.closed = true;
      break;
    }
    auto record = parse_json(lines[i]);
    if (!record) {
      check::failed(__FILE__, __LINE__, path + ": not JSON: " + std::string(lines[i].substr(0, 300)));
      exit(1);
    }
    CHECK(ids.insert((*record)["id"].integer()).second);
    out.records.push_back(std::move(*record));
  }
  REQUIRE(out.records.size() >= 6);
  const char* opening[] = {"HH", "thread_name", "FH", "SH", "SH"};
  for (size_t i = 0; i < 5; ++i) CHECK_EQ(out.records[i]["name"].text, opening[i]);
  CHECK_EQ(out.named("start").size(), 1u);
  return out;
}

std::vector<Json> Trace::named(const std::string& name) const {
  std::vector<Json> out;
  for (auto& r : records)
    if (r["name"].text == name) out.push_back(r);
  return out;
}

std::map<int64_t, std::vector<int64_t>> Trace::numbers(const std::string& name) const {
  std::map<int64_t, std::vector<int64_t>> out;
  for (auto& r : records)
    if (r["name"].text == name) out[r["tid"].integer()].push_back(r["args"]["n"].integer());
  return out;
}
