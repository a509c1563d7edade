// The names of what a record and its arguments hold, for readers that take them in any order.
#pragma once

#include <string_view>

namespace dft::keys {

inline constexpr char kId[] = "id", kName[] = "name", kCategory[] = "cat", kPid[] = "pid", kTid[] = "tid", kTs[] = "ts",
                      kDuration[] = "dur", kPhase[] = "ph", kArgs[] = "args";

// Of `args`: of every record, of metadata, of traced calls, of training steps.
inline constexpr char kHostHash[] = "hhash", kParent[] = "p_idx", kLevel[] = "level";
inline constexpr char kMetadataName[] = "name", kMetadataValue[] = "value";
inline constexpr char kFileHash[] = "fhash", kSize[] = "size", kOffset[] = "offset", kReturn[] = "ret",
                      kErrno[] = "errno", kFileName[] = "filename", kShortFileName[] = "fname";
inline constexpr char kEpoch[] = "epoch", kStep[] = "step", kCount[] = "count", kImageIndex[] = "image_idx";

// Keys of `args` that are the format's own, not the user's to overwrite.
inline bool is_reserved(std::string_view key) { return key == kHostHash || key == kParent || key == kLevel; }

}  // namespace dft::keys
