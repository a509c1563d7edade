"""Writes native/session/tables.hpp: the settings and launchers of the Python side, for preloaded programs.

python native/generate.py            rewrite it
python native/generate.py --check    exit 1 if it is not fresh
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dftracer import _config

HERE = Path(__file__).resolve().parent
TARGET = HERE / "session" / "tables.hpp"

HEAD = """\
// Made by native/generate.py from src/dftracer/_config.py; do not edit.
// clang-format off
#pragma once

#include <cstdint>

namespace dft {

struct SettingRow {
  const char* name;
  const char* variable;
  const char* kind;  // bool, int, size, choice, text, path, dirs or list
  const char* fallback;
  int64_t low, high;
  bool power_of_two;
  const char* choices[6];
};

inline constexpr SettingRow kSettings[] = {
"""

LAUNCHERS_HEAD = """\
};

inline constexpr const char* kChoiceAliases[][2] = {
%s};

// Of each list the first that is set counts; lists end with a null.
struct LauncherRow {
  const char* name;
  const char* rank[3];
  const char* local_rank[4];
  const char* world_size[4];
  const char* job[4][3];
};

inline constexpr LauncherRow kLaunchers[] = {
"""


def _text(value: object) -> str:
    return json.dumps(value)


def _list(names: tuple[str, ...]) -> str:
    return "{" + ", ".join(_text(n) for n in names) + "}"


def text() -> str:
    """The whole header."""
    out = HEAD
    for s in _config.SETTINGS:
        fallback = str(int(s.default)) if isinstance(s.default, bool) else str(s.default)
        out += (
            f"    {{{_text(s.name)}, {_text(s.env)}, {_text(s.kind)}, {_text(fallback)}, {s.low}, {s.high}, "
            f"{str(s.power_of_two).lower()}, {_list(s.choices)}}},\n"
        )
    aliases = "".join(f"    {{{_text(a)}, {_text(b)}}},\n" for a, b in _config.CHOICE_ALIASES.items())
    out += LAUNCHERS_HEAD % aliases
    for name, rank, local, size, job in _config.LAUNCHERS:
        jobs = "{" + ", ".join(_list(group) for group in job) + "}"
        out += f"    {{{_text(name)}, {_list(rank)}, {_list(local)}, {_list(size)}, {jobs}}},\n"
    return out + "};\n\n}  // namespace dft\n"


def main() -> int:
    """Write or check."""
    fresh = text()
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == fresh:
        return 0
    if "--check" in sys.argv[1:]:
        print("native/session/tables.hpp is not fresh; run python native/generate.py")
        return 1
    TARGET.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
