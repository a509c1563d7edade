// A trace file, a chunk of rows at a time: members inflated and scanned on several threads.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "inflate.hpp"
#include "line.hpp"

namespace dft::load {

struct FileCounts {
  std::uint64_t file_bytes = 0;
  std::uint64_t text_bytes = 0;
  std::uint64_t members = 0;
  std::uint64_t members_skipped = 0;  // outside the asked time: never inflated
  std::uint64_t members_cut = 0;      // damaged or unfinished
  std::uint64_t cut_lines = 0;        // last lines without their end
  bool closed = false;                // the file ends with `]`
};

class FileScanner {
 public:
  // Throws std::system_error when the file cannot be opened.
  FileScanner(const std::string& path, unsigned threads, std::size_t chunk_text, Filter filter);
  ~FileScanner();
  FileScanner(const FileScanner&) = delete;
  FileScanner& operator=(const FileScanner&) = delete;

  // The next rows in file order, nothing at the end. Needs no GIL.
  std::unique_ptr<Chunk> next();

  LineCounts line_counts() const;
  const FileCounts& counts() const noexcept { return counts_; }
  Dictionaries& dictionaries() noexcept { return *dictionaries_; }

 private:
  enum class Kind { unknown, plain, noted, stream, end };
  struct Block {
    std::vector<std::uint8_t> packed;  // a member, when noted
    std::size_t text_size = 0;
    Column<char> text;  // else the text itself, padded
    bool cut = false;
    bool ends_file = false;
    std::size_t tail = 0;  // bytes of an unfinished last line
    char last = 0;         // the last byte that is not blank
  };
  struct Worker;

  void find_kind();
  std::size_t read_at(std::uint64_t offset, void* to, std::size_t n);
  bool collect(std::deque<Block>& blocks);
  bool collect_noted(std::deque<Block>& blocks);
  bool collect_text(std::deque<Block>& blocks);
  std::size_t refill(Column<char>& text, std::size_t room);
  static void work(Worker& w, std::deque<Block>& blocks, std::size_t from, std::size_t to);

  int fd_ = -1;
  std::uint64_t size_ = 0, offset_ = 0;
  Kind kind_ = Kind::unknown;
  unsigned threads_;
  std::size_t chunk_text_;
  Filter filter_;
  FileCounts counts_;
  std::unique_ptr<Dictionaries> dictionaries_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<StreamInflater> stream_;
  std::vector<std::uint8_t> packed_;  // input of the stream, consumed from packed_at_
  std::size_t packed_at_ = 0;
  Column<char> carry_;  // the part of a line that waits for its end
};

}  // namespace dft::load
