#include <deque>

#include "json.hpp"

namespace dft::link {
namespace {

// `[tensor, storage, offset, elements, item size, "device"]`, at any depth of a list of values.
void find_tensors(std::string_view values, int64_t node, Tensors& out) {
  const char* p = values.data();
  const char* end = p + values.size();
  while (p < end) {
    if (*p == '"') {  // inside a text nothing is a tensor
      do {
        const void* quote = std::memchr(p + 1, '"', size_t(end - p - 1));
        if (!quote) return;
        p = static_cast<const char*>(quote);
        const char* back = p;
        while (back[-1] == '\\') --back;
        if (((p - back) & 1) == 0) break;
      } while (p < end);
      ++p;
      continue;
    }
    if (*p != '[') {
      ++p;
      continue;
    }
    const char* q = p + 1;
    int64_t numbers[5];
    int n = 0;
    while (n < 5) {
      while (q < end && *q == ' ') ++q;
      const char* begin = q;
      uint64_t value = 0;
      while (q < end && *q >= '0' && *q <= '9' && q - begin < 19) value = value * 10 + uint64_t(*q++ - '0');
      if (q == begin) break;
      while (q < end && *q == ' ') ++q;
      if (q >= end || *q != ',') break;
      ++q;
      numbers[n++] = int64_t(value);
    }
    while (q < end && *q == ' ') ++q;
    if (n == 5 && q < end && *q == '"') {
      out.node.push_back(node);
      out.tensor.push_back(numbers[0]);
      out.storage.push_back(numbers[1]);
      out.elements.push_back(numbers[3]);
      out.item.push_back(numbers[4]);
    }
    ++p;
  }
}

class Reader {
 public:
  explicit Reader(Nodes& out) : out_(out) {}

  bool node(Cursor& c) {
    id_ = parent_ = -1;
    bool has_id = false, has_name = false, has_attrs = false, has_deps = false;
    std::string_view name;
    sides_[0] = sides_[1] = {};
    const bool good = c.object([&](std::string_view key) {
      if (key == "id") return has_id = c.integer(id_);
      if (key == "name") return has_name = c.string(name);
      if (key == "ctrl_deps") return has_deps = dependency(c);
      if (key == "parent" && !has_deps) return dependency(c);
      if (key == "inputs") return side(c, sides_[0]);
      if (key == "outputs") return side(c, sides_[1]);
      if (key == "attrs") {
        if (!has_name) return false;  // the name says which attributes to expect
        return has_attrs = attributes(c, name);
      }
      return c.skip();
    });
    if (!good || !has_id || !has_name || !has_attrs) return false;
    const auto row = int64_t(out_.id.size());
    out_.id.push_back(id_);
    out_.parent.push_back(parent_);
    out_.name.push_back(out_.names.code(name));
    out_.rf.push_back(numbers_[0]);
    out_.fw_parent.push_back(numbers_[1]);
    out_.seq.push_back(numbers_[2]);
    out_.rest.push_back(rest_);
    add(sides_[0], out_.inputs, row);
    add(sides_[1], out_.outputs, row);
    return true;
  }

 private:
  struct Span {
    std::string_view values{"[]"}, shapes{"[]"}, types{"[]"};
  };

  bool dependency(Cursor& c) {
    if (!c.peek('[')) return c.integer(parent_);
    c.take('[');
    if (c.take(']')) return true;
    std::string_view ignored;
    if (!c.integer(parent_)) return false;
    while (c.take(','))
      if (!c.value(ignored)) return false;
    return c.take(']');
  }

  static bool side(Cursor& c, Span& out) {
    return c.object([&](std::string_view key) {
      if (key == "values") return c.value(out.values);
      if (key == "shapes") return c.value(out.shapes);
      if (key == "types") return c.value(out.types);
      return c.skip();
    });
  }

  // Three attributes differ from node to node. The rest is nearly always that of the last node of the same name:
  // one comparison skips it.
  bool attributes(Cursor& c, std::string_view node_name) {
    static constexpr std::string_view kNames[3] = {"rf_id", "fw_parent", "seq_id"};
    if (!c.take('[')) return false;
    for (int i = 0; i < 3; ++i) {
      std::string_view name;
      bool known = false;
      const bool good = c.object([&](std::string_view key) {
        if (key == "name") return c.string(name);
        if (key == "value") return known = c.integer(numbers_[i]);
        return c.skip();
      });
      if (!good || !known || name != kNames[i] || !c.take(',')) return false;
    }
    c.blanks();
    std::string_view& usual = usual_[node_name];
    if (!usual.empty() && c.left() >= usual.size() && std::memcmp(c.at(), usual.data(), usual.size()) == 0) {
      c.jump(usual.size());
      rest_ = rests_[usual.data()];
      return true;
    }
    const char* begin = c.at();
    do {
      if (!c.peek('{') || !c.skip()) return false;
    } while (c.take(','));
    if (!c.take(']')) return false;
    usual = {begin, size_t(c.at() - begin)};
    rest_ = rests_[begin] = out_.rests.code(usual);
    return true;
  }

  void add(const Span& span, Side& side, int64_t row) {
    side.values.add(span.values);
    find_tensors(span.values, row, side.tensors);
    key_.assign(span.shapes).append(1, '\0').append(span.types);
    const auto known = kind_codes_.find(key_);
    if (known != kind_codes_.end()) {
      side.kind.push_back(known->second);
      return;
    }
    const auto code = int32_t(out_.kind_shapes.size());
    kind_codes_.emplace(key_, code);
    out_.kind_shapes.push_back(span.shapes);
    out_.kind_types.push_back(span.types);
    side.kind.push_back(code);
  }

  Nodes& out_;
  int64_t id_ = -1, parent_ = -1, numbers_[3] = {};
  int32_t rest_ = 0;
  Span sides_[2];
  std::string key_;
  std::unordered_map<std::string, int32_t> kind_codes_;
  std::unordered_map<std::string_view, std::string_view> usual_;
  std::unordered_map<const char*, int32_t> rests_;
};
}  // namespace

bool parse_nodes(std::string_view text, Nodes& out) {
  Cursor c(text);
  Reader reader(out);
  while (true) {
    if (!reader.node(c)) return false;
    if (!c.take(',')) break;
  }
  c.blanks();
  return c.done();
}

}  // namespace dft::link
