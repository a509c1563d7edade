// AutoEvent: one kind of automatic event, and the nodes whose manual annotations replace it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "format/json.hpp"
#include "module/boundary.hpp"
#include "module/cpython_util.hpp"
#include "module/values.hpp"

namespace dft::py {

struct AutoEvent {
  PyObject_HEAD
  uint32_t name_id;        // of name and category
  PyObject* manual_nodes;  // a tuple of nodes
  uint64_t seen;           // how often they had been entered when this was last checked
  Phase phase;
  Relaxed<bool> silent;
};

extern PyTypeObject g_auto_event_type;

std::string_view view_of(PyObject* text);

// Alternating keys and values, in a buffer as long as they are what automatic tracing writes in every step: fixed
// strings and numbers.
class Pairs {
 public:
  void add(std::string_view key, int64_t number) {
    if (DFT_LIKELY(fits(key))) {
      at_ = put(put(put(at_, ",\""), key), "\":");
      at_ = put_int(at_, number);
    } else {
      begin_long(key);
      append_int(all_, number);
    }
  }
  void add(std::string_view key, PyObject* value) {
    int overflow = 1;
    long long number = PyLong_CheckExact(value) ? PyLong_AsLongLongAndOverflow(value, &overflow) : 0;
    if (DFT_LIKELY(!overflow)) {
      add(key, int64_t(number));
    } else {
      begin_long(key);
      append_value(all_, value);
    }
  }
  // The pairs alone, and with the mark of an automatic event.
  std::string_view plain() const {
    return longer_ ? std::string_view(all_) : std::string_view(buffer_, size_t(at_ - buffer_));
  }
  std::string_view text() {
    if (longer_) return all_.append(kAuto);
    at_ = put(at_, kAuto);
    return {buffer_, size_t(at_ - buffer_)};
  }

 private:
  static constexpr std::string_view kAuto = ",\"auto\":1";
  static constexpr size_t kRoom = 48;  // of the digits of a number, the marks around them and the last pair

  bool fits(std::string_view key) const {
    return !longer_ && size_t(buffer_ + sizeof buffer_ - at_) >= key.size() + kRoom;
  }
  void begin_long(std::string_view key) {
    if (!longer_) all_.assign(buffer_, size_t(at_ - buffer_));
    longer_ = true;
    all_.append(",\"").append(key).append("\":");
  }

  char buffer_[256];
  char* at_ = buffer_;
  bool longer_ = false;
  std::string all_;
};

// Whether the program has annotated it itself since this was last checked.
bool annotated_by_hand(AutoEvent* e);
void emit(AutoEvent* e, uint64_t start, uint64_t end, std::string_view args);
void emit(std::string_view name, std::string_view cat, uint64_t start, uint64_t end, std::string_view args);

inline void event_begins(AutoEvent* e) {
  if (e->phase != kNoPhase && !e->silent) boundary(e->phase, true);
}
inline void event_ends(AutoEvent* e) {
  if (e->phase != kNoPhase && !e->silent) boundary(e->phase, false);
}

bool init_auto_events(PyObject* module);

}  // namespace dft::py
