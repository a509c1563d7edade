#!/usr/bin/env bash
# Builds a Python without the interpreter lock from Debian's copy of its source, installs this package there, runs
# tests/unit/test_free_threaded.py and test_stacks.py with it and measures two threads at once (bench.threads, which
# fails if they grow much less than an empty context manager does).
#
#   tools/free_threaded.sh [VERSION ...]    3.13.15 and 3.14.7 unless named; Debian keeps only some versions
#   tools/free_threaded.sh --with-lock [VERSION ...]    3.14.7, with the lock: four folders of tests
#
# The source comes from the mirrors that apt uses here.
set -euo pipefail
cd "$(dirname "$0")/.."

lock=no
[ "${1:-}" != --with-lock ] || { lock=yes; shift; }
if [ $# = 0 ]; then [ $lock = yes ] && set -- 3.14.7 || set -- 3.13.15 3.14.7; fi
[ $lock = yes ] || [ -x .venv/bin/pytest ] \
  || { echo "tools/free_threaded.sh needs the test environment: make test" >&2; exit 2; }
jobs=${JOBS:-$(nproc)}

for version in "$@"; do
  series=${version%.*} place=$PWD/build/free_threaded/$version
  python=$place/installed/bin/python${series}t options=(--disable-gil)
  if [ $lock = yes ]; then
    place=$PWD/build/with_lock/$version options=()
    python=$place/installed/bin/python$series
  fi
  if [ ! -x "$python" ]; then
    rm -rf "$place"
    mkdir -p "$place/source"
    for mirror in $(apt-get indextargets --format '$(REPO_URI)' | sort -u); do
      curl -fsSL "${mirror%/}/pool/main/p/python$series/python${series}_$version.orig.tar.xz" -o "$place/source.tar.xz" \
        2> /dev/null && break
    done
    [ -e "$place/source.tar.xz" ] \
      || { echo "tools/free_threaded.sh: no Python $version at Debian; name a version that is there" >&2; exit 2; }
    tar -xf "$place/source.tar.xz" -C "$place/source" --strip-components 1
    echo "building Python $version (a few minutes)"
    # Optimized as by default; what profiles guide would take half an hour.
    (cd "$place/source" && ./configure -q "${options[@]}" --prefix="$place/installed" > "$place/log" 2>&1 \
      && make -s -j "$jobs" >> "$place/log" 2>&1 && make -s install >> "$place/log" 2>&1) \
      || { tail -20 "$place/log"; exit 1; }
    rm -rf "$place/source" "$place/source.tar.xz"
  fi
  rm -rf "$place/venv"
  "$python" -m venv "$place/venv"
  "$place/venv/bin/pip" install -q .
  echo "Python $version"
  if [ $lock = yes ]; then
    # shellcheck disable=SC2046,SC2086
    "$place/venv/bin/pip" install -q ${TORCH:-torch==2.13.0}
    "$place/venv/bin/pip" install -q $("$place/venv/bin/python" .ci/packages.py test)
    "$place/venv/bin/python" -m pytest -q -p no:cacheprovider -n "$jobs" --dist loadfile -m "not mirror and not thorough" \
      tests/unit tests/integration tests/intercept tests/property
  else
    DFTRACER_TEST_FREE_THREADED=$place/venv/bin/python .venv/bin/pytest -q -p no:cacheprovider tests/unit/test_free_threaded.py tests/unit/test_stacks.py
    "$place/venv/bin/python" -m bench.threads
  fi
done
