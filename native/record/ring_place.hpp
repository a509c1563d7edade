// Where rings lie, and who may have put them there: only the user who records.
#pragma once

#include <string>
#include <vector>

struct stat;

namespace dft {

inline constexpr const char* kSharedMemory = "/dev/shm";

// The directory of this user's rings in shared memory, closed to all others; empty where it cannot be had like that.
std::string own_ring_directory(bool make = false);
// Where a ring file may lie, best first. `requested`: by the user, who then gets no other place.
std::vector<std::string> ring_directories(const std::string& requested, const std::string& trace_directory);

// A regular file of this user, under one name, that no one else may open.
bool is_private_file(const struct stat& st);

// A ring that lies elsewhere is known in the user's own directory by a link of its name, so that every reader finds it.
void link_ring(const std::string& ring);
void unlink_ring(const std::string& ring);

// The ring files in `directory` that can be looked at, links followed once. Nothing is said of what they hold.
std::vector<std::string> ring_files_in(const std::string& directory);
// Those that earlier versions left openly in shared memory.
std::vector<std::string> old_ring_files();

}  // namespace dft
