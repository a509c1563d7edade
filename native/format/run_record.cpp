#include "format/run_record.hpp"

#include <cstdlib>
#include <utility>

#include "format/json.hpp"

namespace dft {
namespace {

void add(std::string& out, const char* key, std::string_view value) {
  out += ",\"";
  out += key;
  out += "\":";
  append_json_string(out, value);
}

void add_number(std::string& out, const char* key, const std::string& digits) {
  if (digits.empty()) return;
  out += ",\"";
  out += key;
  out += "\":";
  out += digits;
}

// Keys with arbitrary values (the command) come last in the record.
std::string value_of(std::string_view record, const char* key) {
  std::string wanted = "\"";
  wanted += key;
  wanted += "\":";
  size_t args = record.find("\"args\":");
  size_t at = args == record.npos ? args : record.find(wanted, args);
  if (at == record.npos) return "";
  at += wanted.size();
  bool quoted = at < record.size() && record[at] == '"';
  size_t end = quoted ? record.find('"', ++at) : record.find_first_of(",}", at);
  return end == record.npos ? "" : std::string(record.substr(at, end - at));
}

}  // namespace

std::string run_arguments(const RunRecord& run) {
  std::string out;
  add(out, "run", run.id);
  add_number(out, "start", std::to_string(run.start_us));
  add_number(out, "rank", run.rank);
  add_number(out, "world_size", run.world_size);
  add_number(out, "attempt", std::to_string(run.attempt));
  add(out, "owner", run.owner);
  add(out, "launcher", run.launcher);
  add(out, "version", run.version);
  if (!run.python.empty()) add(out, "python", run.python);
  add(out, "command", run.command);
  return out;
}

bool find_run_record(std::string_view text, RunRecord* out) {
  for (auto [kind, key] : {std::pair{"HH", "run"}, {"run", "value"}}) {
    std::string head = std::string("\"name\":\"") + kind + "\",\"cat\":\"dftracer\"";
    size_t at = text.find(head);
    size_t end = at == text.npos ? at : text.find('\n', at);
    if (end == text.npos) continue;
    std::string_view record = text.substr(at, end - at);
    out->id = value_of(record, key);
    if (out->id.empty()) continue;
    out->owner = value_of(record, "owner");
    out->rank = value_of(record, "rank");
    out->attempt = atoll(value_of(record, "attempt").c_str());
    return true;
  }
  return false;
}

}  // namespace dft
