// The loader: a file of these bytes, or a trace with this text in one of the forms traces come in.
#include <unistd.h>
#include <zlib.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "load/scanner.hpp"
#include "load/sweep.hpp"

namespace {

std::string packed(const std::string& text, int window) {
  z_stream z{};
  if (deflateInit2(&z, 1, Z_DEFLATED, window, 8, Z_DEFAULT_STRATEGY) != Z_OK) std::abort();
  std::string out(deflateBound(&z, text.size()) + 64, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  if (deflate(&z, Z_FINISH) != Z_STREAM_END) std::abort();
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

template <class T>
void put(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string member(const std::string& text) {
  const std::string body = packed(text, -15);
  std::string out("\x1f\x8b\x08\x04\0\0\0\0\0\xff\x24\0DF\x20\0", 16);
  put(out, uint32_t(56 + body.size()));
  put(out, uint32_t(text.size()));
  put(out, uint32_t{7});
  put(out, uint32_t{0});
  put(out, uint64_t{0});
  put(out, uint64_t{0});
  out += body;
  put(out, uint32_t(crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size()))));
  put(out, uint32_t(text.size()));
  return out;
}

void scan(const std::string& path, const dft::load::Filter& filter) {
  dft::load::FileScanner scanner(path, 2, 1 << 16, filter, {});
  while (const auto columns = scanner.next()) {
    const size_t n = columns->rows;
    if (columns->ts.size() != n || columns->dur.size() != n || columns->args_end.size() != n) std::abort();
    if (n != 0 && size_t(columns->args_end.data()[n - 1]) > columns->args_text.size()) std::abort();
    if (columns->tid.size() != n || n == 0) continue;
    std::vector<int64_t> parent(n), self(n);
    dft::load::nest(columns->tid.data(), columns->ts.data(), columns->dur.data(), n, parent.data(), self.data());
  }
  (void)scanner.line_counts();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string path = [] {
    const char* folder = std::getenv("TMPDIR");
    return std::string(folder != nullptr ? folder : "/tmp") + "/dftracer-fuzz-" + std::to_string(getpid());
  }();
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::string file;
  switch (data[0] % 5) {
    case 0: file = text; break;
    case 1: file = packed(text, 31); break;
    case 2: file = member(text.substr(0, text.size() / 2)) + member(text.substr(text.size() / 2)); break;
    case 3: file = member(text).substr(0, text.size() / 3) + member(text); break;
    default: file = member("[\n") + text + member(text); break;
  }
  std::FILE* out = std::fopen(path.c_str(), "wb");
  if (out == nullptr) std::abort();
  std::fwrite(file.data(), 1, file.size(), out);
  std::fclose(out);
  dft::load::Filter some;
  some.any = data[0] >= 128;
  some.names = {"read"};
  scan(path, data[0] >= 128 ? some : dft::load::Filter{});
  std::remove(path.c_str());
  return 0;
}
