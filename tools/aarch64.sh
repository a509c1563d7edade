#!/usr/bin/env bash
# Builds the engine and its tests for aarch64 with Debian's cross compiler, and runs them under qemu. Not all pass there
# yet: what replaces the calls of libraries replaces none under qemu (relocations_test, device_test).
#
# The arm64 libraries come from Debian's archive into build/aarch64/root; the packages of this machine are left alone.
set -euo pipefail
cd "$(dirname "$0")/.."

build=$PWD/build/aarch64 root=$PWD/build/aarch64/root
jobs=${JOBS:-$(nproc)}

for tool in aarch64-linux-gnu-g++:g++-aarch64-linux-gnu qemu-aarch64:qemu-user cmake:cmake ninja:ninja-build; do
  command -v "${tool%%:*}" > /dev/null && continue
  [ "$(id -u)" = 0 ] || { echo "tools/aarch64.sh needs ${tool%%:*}: apt-get install ${tool##*:}" >&2; exit 2; }
  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y "${tool##*:}" > /dev/null
done

# zlib and Python with what they need, unpacked.
if [ ! -e "$root/.complete" ]; then
  apt=$build/apt
  rm -rf "$root" "$apt"
  mkdir -p "$apt"/state/lists/partial "$apt"/cache/archives/partial "$root"/usr/{bin,lib,sbin}
  ln -s usr/bin usr/lib usr/sbin "$root"
  options=(-qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$apt/state"
    -o Dir::Cache="$apt/cache" -o Dir::State::status=/dev/null -o APT::Sandbox::User="$(id -un)")
  apt-get "${options[@]}" update
  apt-get "${options[@]}" install -y --download-only --no-install-recommends zlib1g-dev python3-dev libstdc++6
  for package in "$apt"/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$root"
  done
  mkdir -p "$build/zlib"
  cp "$root"/usr/include/{zlib,zconf}.h "$build/zlib"
  rm -rf "$apt"
  touch "$root/.complete"
fi
emulator="qemu-aarch64;-L;$root"
libraries=$root/usr/lib/aarch64-linux-gnu
cross=(-G Ninja -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ "-DCMAKE_CROSSCOMPILING_EMULATOR=$emulator" -DDFTRACER_WERROR=ON
  -DZLIB_LIBRARY="$libraries/libz.a" -DZLIB_INCLUDE_DIR="$build/zlib"
  # After the compiler's own headers: those of its C library are the ones that it links against.
  "-DCMAKE_C_FLAGS=-idirafter $root/usr/include -idirafter $root/usr/include/aarch64-linux-gnu"
  "-DCMAKE_CXX_FLAGS=-idirafter $root/usr/include -idirafter $root/usr/include/aarch64-linux-gnu")

cmake -S . -B "$build/native" "${cross[@]}" -DDFTRACER_BUILD_TESTS=ON -DDFTRACER_BUILD_MODULE=OFF
cmake --build "$build/native" -j "$jobs"
# fork_test takes 11 GB under qemu, and leaves its children behind.
ctest --test-dir "$build/native" --output-on-failure -j "$jobs" -E fork_test
