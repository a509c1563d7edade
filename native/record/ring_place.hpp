// Where rings are kept, and who may have put them there: only the user who records.
#pragma once

#include <string>
#include <vector>

struct stat;

namespace dft {

inline constexpr const char* kSharedMemory = "/dev/shm";

// The directory of this user's rings in shared memory, closed to all others; empty if that is not possible.
std::string own_ring_directory(bool make = false);
// Where a ring file may be placed, best first. `requested`: by the user, who then gets no other place.
std::vector<std::string> ring_directories(const std::string& requested, const std::string& trace_directory);

// A regular file of this user, with one name, that no one else may open.
bool is_private_file(const struct stat& st);

// A ring elsewhere has a link of the same name in the user's own directory, so that every reader finds it.
void link_ring(const std::string& ring);
void unlink_ring(const std::string& ring);

// The accessible ring files in `directory`, with links followed once. Their contents are not checked.
std::vector<std::string> ring_files_in(const std::string& directory);
// Those that earlier versions left in shared memory itself.
std::vector<std::string> old_ring_files();

}  // namespace dft
