#include "write/existing_trace.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "format/member.hpp"
#include "format/run_record.hpp"
#include "record/process_owner.hpp"
#include "write/gzip.hpp"

namespace dft {
namespace {

constexpr size_t kHead = 64 << 10;      // the run is in the second record
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

// The text of the last member, or nothing if the members do not reach the end of the file.
std::string last_member_text(int fd, uint64_t size) {
  for (uint64_t at = 0; at < size;) {
    auto index = read_member_index(read_piece(fd, at, kMemberHeaderSize));
    if (!index) return "";
    uint64_t next = at + index->member_size;
    if (next == size) {
      if (index->text_size > kLongTail) return "";
      return first_member_text(read_piece(fd, at, index->member_size), index->text_size);
    }
    if (next <= at) return "";
    at = next;
  }
  return "";
}

void read_head(std::string_view text, ExistingTrace* out) {
  size_t first = text.find_first_not_of(" \t\r\n");
  if (first == text.npos || (text[first] != '[' && text[first] != '{')) return;
  out->kind = ExistingTrace::kTrace;
  RunRecord record;
  if (!find_run_record(text, &record)) return;
  out->run = record.id;
  out->owner = record.owner;
  out->rank = record.rank;
  out->attempt = record.attempt;
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
