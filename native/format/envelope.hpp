// The text of a record around its values: every key, bracket and comma of the envelope is here and nowhere else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "format/json.hpp"

namespace dft::envelope {

// {"id":1,"name":"forward","cat":"compute","pid":1,"tid":1,"ts":1,"dur":1,"ph":"X","args":{"hhash":"..","p_idx":1,..,"level":1}}
inline constexpr std::string_view kId = "{\"id\":";
inline constexpr std::string_view kName = ",\"name\":";
inline constexpr std::string_view kCategory = ",\"cat\":";
inline constexpr std::string_view kPid = ",\"pid\":";
inline constexpr std::string_view kTid = ",\"tid\":";
inline constexpr std::string_view kTs = ",\"ts\":";
inline constexpr std::string_view kDuration = ",\"dur\":";
inline constexpr std::string_view kEventArgs = ",\"ph\":\"X\",\"args\":{\"hhash\":\"";
inline constexpr std::string_view kParent = "\",\"p_idx\":";
inline constexpr std::string_view kLevel = ",\"level\":";
inline constexpr std::string_view kEnd = "}}\n";
inline constexpr std::string_view kEvent = ",\"ph\":\"X\"";
inline constexpr std::string_view kEventWithoutArgs = ",\"ph\":\"X\"}\n";

// The same around texts, for a reader that passes over them.
inline constexpr std::string_view kNameText = ",\"name\":\"";
inline constexpr std::string_view kCategoryAfterText = "\",\"cat\":\"";
inline constexpr std::string_view kPidAfterText = "\",\"pid\":";

// Arguments of traced calls.
inline constexpr std::string_view kFileHash = ",\"fhash\":";
inline constexpr std::string_view kReturn = ",\"ret\":";
inline constexpr std::string_view kErrno = ",\"errno\":";

inline constexpr std::string_view kCounterCategory = "counter";
inline constexpr std::string_view kAggregatedArgs = ",\"ph\":\"A\",\"args\":{\"hhash\":\"";
inline constexpr std::string_view kCounterArgs = ",\"ph\":\"C\",\"args\":{";
inline constexpr std::string_view kMetadataArgs = ",\"ph\":\"M\",\"args\":{\"hhash\":\"";
inline constexpr std::string_view kMetadataName = "\",\"name\":";
inline constexpr std::string_view kMetadataValue = ",\"value\":";

// The tracer's own events.
inline constexpr std::string_view kTracerCategory = "dftracer";
inline constexpr std::string_view kStart = "start";
inline constexpr std::string_view kEndOfTrace = "end";
inline constexpr std::string_view kStartRecord = ",\"name\":\"start\",\"cat\":\"dftracer\"";
inline constexpr std::string_view kEndRecord = ",\"name\":\"end\",\"cat\":\"dftracer\"";
inline constexpr std::string_view kContinues = ",\"continues\":1";
inline constexpr std::string_view kFirstLine = "[\n";
inline constexpr std::string_view kLastLine = "]\n";

// What follows the id, up to the thread's number.
inline void append_names(std::string& out, std::string_view name, std::string_view category, int64_t pid) {
  out += kName;
  append_json_string(out, name);
  out += kCategory;
  append_json_string(out, category);
  out += kPid;
  append_int(out, pid);
  out += kTid;
}

// Everything before the time or, in a record without one, before its kind.
inline void append_head(std::string& out, uint64_t id, std::string_view name, std::string_view category, int64_t pid,
                        int64_t tid) {
  out += kId;
  append_int(out, int64_t(id));
  append_names(out, name, category, pid);
  append_int(out, tid);
}

}  // namespace dft::envelope
