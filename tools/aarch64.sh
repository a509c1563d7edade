#!/usr/bin/env bash
# Builds everything for aarch64 with Debian's cross compiler, runs the engine's tests under qemu, and programs whose I/O is
# traced (docs/decisions/0330-aarch64-under-qemu.md).
#
# The arm64 libraries and, where the installed one is old, qemu come from Debian's archive into build/aarch64; the packages
# of this machine are left alone.
set -euo pipefail
cd "$(dirname "$0")/.."

build=$PWD/build/aarch64 root=$PWD/build/aarch64/root
jobs=${JOBS:-$(nproc)}
debian=http://deb.debian.org/debian
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

for tool in aarch64-linux-gnu-g++:g++-aarch64-linux-gnu cmake:cmake ninja:ninja-build; do
  command -v "${tool%%:*}" > /dev/null && continue
  [ "$(id -u)" = 0 ] || { echo "tools/aarch64.sh needs ${tool%%:*}: apt-get install ${tool##*:}" >&2; exit 2; }
  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y "${tool##*:}" > /dev/null
done

# Unpacks packages: download ARCHITECTURE DIRECTORY [APT OPTION ...] -- PACKAGE ...
download() {
  local architecture=$1 into=$2 apt=$build/apt options=()
  shift 2
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  rm -rf "$apt"
  mkdir -p "$apt"/state/lists/partial "$apt"/cache/archives/partial
  options+=(-qq -o APT::Architecture="$architecture" -o APT::Architectures::="$architecture" -o Dir::State="$apt/state"
    -o Dir::Cache="$apt/cache" -o Dir::State::status=/dev/null -o APT::Sandbox::User="$(id -un)")
  apt-get "${options[@]}" update
  apt-get "${options[@]}" install -y --download-only --no-install-recommends "$@"
  for package in "$apt"/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$into"
  done
  rm -rf "$apt"
}

# zlib and Python with what they need.
if [ ! -e "$root/.complete" ]; then
  rm -rf "$root"
  mkdir -p "$root"/usr/{bin,lib,sbin} "$build/zlib"
  ln -s usr/bin usr/lib usr/sbin "$root"
  download arm64 "$root" -- zlib1g-dev python3-dev libstdc++6
  cp "$root"/usr/include/{zlib,zconf}.h "$build/zlib"
  touch "$root/.complete"
fi

# qemu 7.2 (Debian 12) fails where the child of a process with threads starts one, which is what tracing does.
qemu=$(command -v qemu-aarch64 || true)
version=$([ -z "$qemu" ] || "$qemu" --version | sed -n 's/.* version \([0-9]*\).*/\1/p')
if [ "${version:-0}" -lt 10 ]; then
  qemu=$build/qemu/usr/bin/qemu-aarch64
  if [ ! -x "$qemu" ]; then
    mkdir -p "$build/qemu/usr/lib"
    echo "deb [signed-by=$keyring] $debian trixie main" > "$build/trixie.list"
    download "$(dpkg --print-architecture)" "$build/qemu" -o Dir::Etc::sourcelist="$build/trixie.list" \
      -o Dir::Etc::sourceparts=/dev/null -- qemu-user
  fi
fi
emulator=("$qemu" -L "$root")
libraries=$root/usr/lib/aarch64-linux-gnu
include="-idirafter $root/usr/include -idirafter $root/usr/include/aarch64-linux-gnu"
cross=(-G Ninja -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DDFTRACER_WERROR=ON -DZLIB_LIBRARY="$libraries/libz.a" -DZLIB_INCLUDE_DIR="$build/zlib"
  # After the compiler's own headers: those of its C library are the ones that it links against.
  "-DCMAKE_C_FLAGS=$include" "-DCMAKE_CXX_FLAGS=-DDFT_EMULATED=1 $include")

echo "The engine's tests:"
cmake -S . -B "$build/native" "${cross[@]}" -DDFTRACER_BUILD_TESTS=ON -DDFTRACER_BUILD_MODULE=OFF \
  "-DCMAKE_CROSSCOMPILING_EMULATOR=$(IFS=';'; echo "${emulator[*]}")"
cmake --build "$build/native" -j "$jobs"
ctest --test-dir "$build/native" --output-on-failure -j "$jobs"

echo "The package:"
python=$build/python
cat > "$python" << EOF
#!/bin/sh
PYTHONHOME=$root/usr exec $(printf '%q ' "${emulator[@]}") $root/usr/bin/python3 "\$@"
EOF
chmod +x "$python"
headers=$(echo "$root"/usr/include/python3.*)
cmake -S . -B "$build/module" "${cross[@]}" -DPython_EXECUTABLE="$python" -DPython_INCLUDE_DIR="$headers" \
  -DSKBUILD_SCRIPTS_DIR=bin
cmake --build "$build/module" -j "$jobs"
rm -rf "$build/installed" "$build/trace"
cmake --install "$build/module" --prefix "$build/installed" > /dev/null
cp -r src/dftracer "$build/installed"
echo '__version__ = "0"' > "$build/installed/dftracer/_version.py"
mkdir "$build/trace"
DFTRACER_ENABLE=1 DFTRACER_RING_SIZE=16M PYTHONPATH=$build/installed \
  "$python" -W error tests/support/free_threaded_program.py "$build/trace" locked

echo "Programs in C, whose calls are intercepted:"
python3 tools/emulated_calls.py "$build/installed/dftracer" aarch64-linux-gnu-gcc "${emulator[@]}"
