"""Writes `src/dftracer/format/_io_roles.py` from io_hooks.def, the list of traced calls."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "native" / "format" / "io_hooks.def"
TARGET = ROOT / "src" / "dftracer" / "format" / "_io_roles.py"
_CALL = re.compile(r"^IO_CALL\((\w+), (\w+), (\w+)", re.MULTILINE)


def module() -> str:
    """The module as it should be."""
    calls = _CALL.findall(SOURCE.read_text(encoding="utf-8"))
    lines = [f'    "{name}": "{role}",' for _, name, role in calls]
    return "\n".join(
        [
            '"""Made by native/format/io_call_roles.py from native/format/io_hooks.def."""',
            "",
            "ROLES = {",
            *lines,
            "}",
            "",
        ]
    )


if __name__ == "__main__":
    TARGET.write_text(module(), encoding="utf-8")
