// Calls a fuzz target with damaged copies of the corpus, for compilers without a fuzzer of their own:
//   fuzz_scan SECONDS SEED LAST_INPUT FILE...
// The input under test lies in LAST_INPUT, so that a crash leaves it there.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr size_t kLargest = 1 << 18;
const char* const kTokens[] = {"null",
                               "[]",
                               "{}",
                               "\"\"",
                               "-1",
                               "1e999",
                               "9223372036854775807",
                               "-9223372036854775808",
                               "18446744073709551616",
                               "99999999999999999999999",
                               "\\u0000",
                               "\\ud800",
                               "\\",
                               "\"",
                               "{\"a\":",
                               "[[[[[[[[",
                               "\n",
                               "\x1f\x8b\x08",
                               "\xff\xfe",
                               ",",
                               "}"};

class Damage {
 public:
  explicit Damage(uint64_t seed) : random_(seed) {}

  std::string operator()(const std::vector<std::string>& corpus) {
    std::string data = corpus[at(corpus.size())];
    if (at(8) == 0) data += corpus[at(corpus.size())];
    for (size_t n = 1 + at(6); n > 0; --n) injure(data);
    if (data.size() > kLargest) data.resize(kLargest);
    return data;
  }

 private:
  size_t at(size_t n) { return n == 0 ? 0 : size_t(random_() % n); }

  void injure(std::string& data) {
    const size_t where = at(data.size() + 1), size = size_t{1} << at(9);
    switch (at(8)) {
      case 0:
        if (where < data.size()) data[where] = char(data[where] ^ (1 << at(8)));
        break;
      case 1:
        if (where < data.size()) data[where] = char(at(256));
        break;
      case 2: data.erase(where, size); break;
      case 3: data.insert(where, data.substr(at(data.size() + 1), size)); break;
      case 4: data.resize(where); break;
      case 5: data.insert(where, size, char(at(256))); break;
      default: {
        const std::string token = kTokens[at(std::size(kTokens))];
        if (at(2) == 0) data.erase(where, at(12));
        data.insert(std::min(where, data.size()), token);
      }
    }
  }

  std::mt19937_64 random_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "%s SECONDS SEED LAST_INPUT FILE...\n", argv[0]);
    return 2;
  }
  std::vector<std::string> corpus;
  for (int i = 4; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  const int fd = ::open(argv[3], O_RDWR | O_CREAT | O_TRUNC, 0600);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(kLargest)) != 0) return 2;
  auto* kept = static_cast<char*>(::mmap(nullptr, kLargest, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  if (kept == MAP_FAILED) return 2;
  Damage damage(std::strtoull(argv[2], nullptr, 10));
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(std::strtol(argv[1], nullptr, 10));
  uint64_t runs = 0;
  do {
    const std::string data = damage(corpus);
    std::memcpy(kept, data.data(), data.size());
    // An allocation of its own size: the sanitizer sees a read one byte too far.
    const std::vector<uint8_t> exact(data.begin(), data.end());
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
    ++runs;
  } while (Clock::now() < end);
  std::remove(argv[3]);
  std::printf("%llu inputs\n", static_cast<unsigned long long>(runs));
  return 0;
}
