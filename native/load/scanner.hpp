// A trace file, a chunk of rows at a time: members inflated and scanned on several threads.
#pragma once

#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "inflate.hpp"
#include "line.hpp"

namespace dft::load {

struct FileCounts {
  uint64_t file_bytes = 0;
  uint64_t text_bytes = 0;
  uint64_t members = 0;
  uint64_t members_skipped = 0;  // outside the requested time: never inflated
  uint64_t members_cut = 0;      // damaged or unfinished
  uint64_t cut_lines = 0;        // last lines without their end
  uint64_t long_lines = 0;       // longer than any recorder writes: skipped
  bool closed = false;           // the file ends with `]`
};

class FileScanner {
 public:
  // Bytes of the file to read. A section that does not begin with the file begins with a member that has an index.
  struct Span {
    uint64_t from = 0, to = std::numeric_limits<uint64_t>::max();
  };
  // `chunk_text` is the text of one chunk. Throws std::system_error when the file cannot be opened.
  // `keep_text`: the chunks have the text of their records, too.
  FileScanner(const std::string& path, unsigned threads, size_t chunk_text, Filter filter, Span span,
              bool keep_text = false);
  ~FileScanner();
  FileScanner(const FileScanner&) = delete;
  FileScanner& operator=(const FileScanner&) = delete;

  // The next rows in file order, nothing at the end. Needs no GIL.
  std::unique_ptr<Columns> next();

  LineCounts line_counts() const;
  const FileCounts& counts() const noexcept { return counts_; }
  uint64_t position() const noexcept { return std::min(offset_, size_); }
  Dictionaries& dictionaries() noexcept { return *dictionaries_; }

 private:
  enum class Kind { unknown, plain, indexed, stream, end };
  struct Block {
    Bytes packed;  // a member, when indexed
    size_t text_size = 0;
    size_t lines = 0;  // as its index says
    Bytes text;        // else the text itself, padded
    bool cut = false;
    bool ends_file = false;
    size_t tail = 0;  // bytes of an unfinished last line
    char last = 0;    // the last byte that is not blank
  };
  struct Worker;

  void find_kind();
  size_t read_at(uint64_t offset, void* to, size_t n);
  const std::string& header_at(uint64_t offset);
  bool states_unit();
  bool collect(std::deque<Block>& blocks);
  bool collect_indexed(std::deque<Block>& blocks);
  bool collect_text(std::deque<Block>& blocks);
  size_t refill(Bytes& text, size_t room);
  bool refill_to_line_end(Bytes& text, size_t& last_line);
  uint64_t next_member(uint64_t from);
  void pass_gap();
  uint64_t member_end(uint64_t size, size_t text_size);
  void read_ahead();
  static std::unique_ptr<Columns> work(Worker& w, std::deque<Block>& blocks, size_t from, size_t to);

  int fd_ = -1;
  bool named_gzip_;
  std::string header_;  // the bytes at header_offset_: those after one member begin the next
  uint64_t header_offset_ = std::numeric_limits<uint64_t>::max();
  uint64_t size_ = 0, offset_ = 0;  // where reading ends, and where it is
  Kind kind_ = Kind::unknown;
  unsigned threads_;
  size_t chunk_text_;
  Filter filter_;
  FileCounts counts_;
  std::unique_ptr<Dictionaries> dictionaries_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<StreamInflater> stream_;
  std::vector<uint8_t> packed_;  // input of the stream, consumed from packed_at_
  size_t packed_at_ = 0;
  std::deque<std::unique_ptr<Columns>> ready_;
  Bytes carry_;  // the part of a line that waits for its end
};

}  // namespace dft::load
