#include "write/existing_trace.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "record/process_owner.hpp"
#include "write/gzip.hpp"

namespace dft {
namespace {

constexpr size_t kHead = 64 << 10;      // the run stands in the second record
constexpr size_t kLongTail = 64 << 20;  // more than a closing member can be

std::string read_piece(int fd, uint64_t offset, size_t size) {
  std::string out(size, '\0');
  size_t done = 0;
  while (done < size) {
    ssize_t n = pread(fd, out.data() + done, size - done, off_t(offset + done));
    if (n <= 0) break;
    done += size_t(n);
  }
  out.resize(done);
  return out;
}

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

// The text of the last member, or nothing where the members do not lead to the end of the file.
std::string last_member_text(int fd, uint64_t size) {
  MemberIndex index;
  for (uint64_t at = 0; at < size;) {
    if (!read_member_index(read_piece(fd, at, kMemberHeader), &index)) return "";
    uint64_t next = at + index.member_size;
    if (next == size) {
      if (index.text_size > kLongTail) return "";
      return first_member_text(read_piece(fd, at, index.member_size), index.text_size);
    }
    if (next <= at) return "";
    at = next;
  }
  return "";
}

std::string_view run_record(std::string_view text) {
  constexpr std::string_view kRun = "\"name\":\"run\",\"cat\":\"dftracer\"";
  size_t at = text.find(kRun);
  if (at == text.npos) return {};
  size_t end = text.find('\n', at);
  return end == text.npos ? std::string_view() : text.substr(at, end - at);
}

// A value of the run record. The keys that may hold anything (the command) come last in it.
std::string value_of(std::string_view record, const char* key) {
  std::string wanted = std::string("\"") + key + "\":";
  size_t args = record.find("\"args\":");
  size_t at = args == record.npos ? args : record.find(wanted, args);
  if (at == record.npos) return "";
  at += wanted.size();
  if (at < record.size() && record[at] == '"') {
    size_t end = record.find('"', at + 1);
    return end == record.npos ? "" : std::string(record.substr(at + 1, end - at - 1));
  }
  size_t end = record.find_first_of(",}", at);
  return end == record.npos ? "" : std::string(record.substr(at, end - at));
}

void read_head(std::string_view text, ExistingTrace* out) {
  size_t first = text.find_first_not_of(" \t\r\n");
  if (first == text.npos || (text[first] != '[' && text[first] != '{')) return;
  out->kind = ExistingTrace::kTrace;
  std::string_view record = run_record(text);
  out->run = value_of(record, "value");
  out->owner = value_of(record, "owner");
  out->rank = value_of(record, "rank");
  out->attempt = atoll(value_of(record, "attempt").c_str());
}

void read_tail(std::string_view text, ExistingTrace* out) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.remove_suffix(1);
  out->closed = text.ends_with("\n]");
  size_t end = text.rfind("\"name\":\"end\",\"cat\":\"dftracer\"");
  out->continues = end != text.npos && text.substr(end).find(",\"continues\":1") != text.npos;
}

}  // namespace

bool ExistingTrace::has_ended() const { return kind == kTrace && ((closed && !continues) || is_known_dead(owner)); }

ExistingTrace look_at(const std::string& path) {
  ExistingTrace out;
  struct stat st;
  if (lstat(path.c_str(), &st) != 0) return out;
  out.kind = ExistingTrace::kForeign;
  if (!S_ISREG(st.st_mode)) return out;
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    if (fd >= 0) close(fd);
    return out;
  }
  out.device = st.st_dev;
  out.inode = st.st_ino;
  out.modified_s = st.st_mtime;
  uint64_t size = uint64_t(st.st_size);
  std::string head = read_piece(fd, 0, kHead);
  if (is_gzip(head)) {
    read_head(first_member_text(head, kHead), &out);
    if (out.kind == ExistingTrace::kTrace) read_tail(last_member_text(fd, size), &out);
  } else {
    read_head(head, &out);
    uint64_t from = size - std::min<uint64_t>(size, kHead);
    if (out.kind == ExistingTrace::kTrace) read_tail(read_piece(fd, from, kHead), &out);
  }
  close(fd);
  return out;
}

}  // namespace dft
