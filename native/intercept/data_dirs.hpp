// Which files are traced: DFTRACER_DATA_DIR, and what `all` leaves out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dft {

class DataDirs {
 public:
  // A colon list of directories, or `all`. Relative ones belong to the current directory. `never` are the
  // directories, not what is in them, that `all` leaves out.
  void set(const std::string& list, const std::vector<std::string>& never);
  // `path` is absolute, without empty or `.` components.
  bool matches(std::string_view path) const;
  const std::string& text() const { return text_; }

 private:
  bool all_ = true;
  std::string text_ = "all";
  std::vector<std::string> dirs_, never_;
};

}  // namespace dft
