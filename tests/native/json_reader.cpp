#include "json_reader.hpp"

#include <cstdlib>

namespace {

// Decodes one code point; -1 when the bytes are not the one right encoding of a scalar value.
int32_t decode(std::string_view s, size_t* size) {
  auto at = [&](size_t i) { return uint8_t(s[i]); };
  int32_t code;
  size_t n;
  if (at(0) < 0x80) {
    *size = 1;
    return at(0);
  }
  if (at(0) >= 0xf8 || at(0) < 0xc0) return -1;
  n = at(0) >= 0xf0 ? 4 : at(0) >= 0xe0 ? 3 : 2;
  code = at(0) & (0x7f >> n);
  if (s.size() < n) return -1;
  for (size_t i = 1; i < n; ++i) {
    if ((at(i) & 0xc0) != 0x80) return -1;
    code = code << 6 | (at(i) & 0x3f);
  }
  *size = n;
  const int32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < least[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return -1;
  return code;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  std::optional<Json> document() {
    Json out;
    if (!value(&out) || !rest_.empty()) return {};
    return out;
  }

 private:
  bool eat(std::string_view word) {
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  bool digits() {
    size_t n = 0;
    while (n < rest_.size() && rest_[n] >= '0' && rest_[n] <= '9') ++n;
    rest_.remove_prefix(n);
    return n > 0;
  }
  bool number(Json* out) {
    std::string_view before = rest_;
    eat("-");
    if (!eat("0") && !digits()) return false;
    if (eat(".") && !digits()) return false;
    if (eat("e") || eat("E")) {
      if (!eat("+")) eat("-");
      if (!digits()) return false;
    }
    out->kind = Json::kNumber;
    out->text = before.substr(0, before.size() - rest_.size());
    return true;
  }
  bool escape(std::string* out) {
    if (rest_.empty()) return false;
    char c = rest_[0];
    rest_.remove_prefix(1);
    static const std::string_view from = "\"\\/bfnrt", to = "\"\\/\b\f\n\r\t";
    if (size_t i = from.find(c); i != from.npos) {
      *out += to[i];
      return true;
    }
    if (c != 'u' || rest_.size() < 4) return false;
    std::string hex(rest_.substr(0, 4));
    if (hex.find_first_not_of("0123456789abcdefABCDEF") != hex.npos) return false;
    long code = strtol(hex.c_str(), nullptr, 16);
    if (code >= 0x80) return false;  // the traces carry everything else as UTF-8
    *out += char(code);
    rest_.remove_prefix(4);
    return true;
  }
  bool string(std::string* out) {
    if (!eat("\"")) return false;
    while (!rest_.empty()) {
      if (eat("\"")) return true;
      if (eat("\\")) {
        if (!escape(out)) return false;
        continue;
      }
      size_t n;
      if (uint8_t(rest_[0]) < 0x20 || decode(rest_, &n) < 0) return false;
      out->append(rest_.substr(0, n));
      rest_.remove_prefix(n);
    }
    return false;
  }
  bool value(Json* out) {
    if (eat("null")) return true;
    if (eat("false")) return out->kind = Json::kFalse, true;
    if (eat("true")) return out->kind = Json::kTrue, true;
    if (rest_.starts_with("\"")) return out->kind = Json::kString, string(&out->text);
    if (eat("[")) {
      out->kind = Json::kArray;
      if (eat("]")) return true;
      do {
        if (!value(&out->items.emplace_back())) return false;
      } while (eat(","));
      return eat("]");
    }
    if (eat("{")) {
      out->kind = Json::kObject;
      if (eat("}")) return true;
      do {
        auto& [key, item] = out->members.emplace_back();
        if (!string(&key) || !eat(":") || !value(&item)) return false;
      } while (eat(","));
      return eat("}");
    }
    return number(out);
  }

  std::string_view rest_;
};

}  // namespace

bool valid_utf8(std::string_view text) {
  while (!text.empty()) {
    size_t n;
    if (decode(text, &n) < 0) return false;
    text.remove_prefix(n);
  }
  return true;
}

bool Json::has(std::string_view key) const {
  for (auto& [name, item] : members)
    if (name == key) return true;
  return false;
}

const Json& Json::operator[](std::string_view key) const {
  static const Json none;
  for (auto& [name, item] : members)
    if (name == key) return item;
  return none;
}

int64_t Json::integer() const { return strtoll(text.c_str(), nullptr, 10); }

std::optional<Json> parse_json(std::string_view text) { return Parser(text).document(); }
