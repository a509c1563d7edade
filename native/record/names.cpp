#include "record/names.hpp"

#include <map>
#include <vector>

#include "record/engine.hpp"
#include "record/record.hpp"

namespace dft {
namespace {

struct Names {
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, uint32_t> numbers;
  std::vector<std::pair<std::string, std::string>> texts;
  FileHeader* published = nullptr;
};

// Leaked, and made when the library is loaded, for the reasons of State in session.cpp.
Names* const g_names = new Names;
Names& names() { return *g_names; }

// False when there is no room: recovery then shows a placeholder for this name and all later ones.
bool append_to(FileHeader* h, std::string_view name, std::string_view cat) {
  uint64_t used = h->names_used.load(std::memory_order_relaxed);
  uint64_t need = 8 + round8(name.size() + cat.size());
  if (used + need > h->names_capacity) return false;
  char* p = reinterpret_cast<char*>(h) + h->names_offset + used;
  uint32_t sizes[2] = {uint32_t(name.size()), uint32_t(cat.size())};
  memcpy(p, sizes, 8);
  memcpy(p + 8, name.data(), name.size());
  memcpy(p + 8 + name.size(), cat.data(), cat.size());
  h->names_used.store(used + need, std::memory_order_release);
  return true;
}

}  // namespace

std::mutex& names_mutex() { return names().mutex; }

uint32_t intern(std::string_view name, std::string_view cat) {
  Names& n = names();
  std::lock_guard lock(n.mutex);
  auto key = std::pair{std::string(name), std::string(cat)};
  auto [it, fresh] = n.numbers.try_emplace(key, uint32_t(n.texts.size()));
  if (fresh) {
    n.texts.push_back(std::move(key));
    // The numbers are positions: after a gap they would refer to other names.
    if (n.published && !append_to(n.published, name, cat)) n.published = nullptr;
  }
  return it->second;
}

std::pair<std::string, std::string> name_of(uint32_t number) {
  Names& n = names();
  std::lock_guard lock(n.mutex);
  return number < n.texts.size() ? n.texts[number] : std::pair<std::string, std::string>{"?", "?"};
}

void publish_names(FileHeader* header) {
  Names& n = names();
  std::lock_guard lock(n.mutex);
  n.published = header;
  for (auto& [name, cat] : n.texts) {
    if (append_to(header, name, cat)) continue;
    n.published = nullptr;
    return;
  }
}

void unpublish_names() {
  Names& n = names();
  std::lock_guard lock(n.mutex);
  n.published = nullptr;
}

}  // namespace dft
