"""Writes the generated parts of the documentation from the tables in the code.

python docs/generate.py            rewrite the tables of docs/settings.md, docs/format.md and docs/events.md
python docs/generate.py --check    exit 1 if one of them is not fresh
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from dftracer._config import SETTINGS, Setting
from dftracer.format.records import ARGS, FIELDS, METADATA
from dftracer.python import DFTracerAI, ai

HERE = Path(__file__).resolve().parent
IO_CALLS = HERE.parent / "native" / "format" / "io_hooks.def"
DEVICE_CALLS = HERE.parent / "native" / "intercept" / "device_hooks.def"

PAGES = {
    "settings.md": ("settings",),
    "format.md": ("fields", "args", "metadata"),
    "events.md": ("vocabulary", "io_calls", "device_calls"),
}
KINDS = {
    "bool": "switch",
    "int": "number",
    "size": "size",
    "text": "text",
    "path": "path",
    "dirs": "paths",
    "list": "list",
}


def _kind(setting: Setting) -> str:
    if setting.choices:
        return ", ".join(setting.choices)
    text = KINDS[setting.kind]
    if setting.kind in ("int", "size") and (setting.low > 0 or setting.high < 1 << 60):
        text += f", {setting.low}..{setting.high}"
    return text


def _default(setting: Setting) -> str:
    if isinstance(setting.default, bool):
        return "1" if setting.default else "0"
    return f"`{setting.default}`" if setting.default != "" else "-"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _vocabulary() -> list[str]:
    rows: list[str] = []

    def walk(node: DFTracerAI, path: str) -> None:
        rows.append(f"| `{path}` | `{node.cat}` | `{node.name}` |")
        for attribute, child in vars(node).items():
            if isinstance(child, DFTracerAI):
                walk(child, f"{path}.{attribute}")

    for attribute, branch in vars(ai).items():
        if isinstance(branch, DFTracerAI):
            walk(branch, f"ai.{attribute}")
    return rows


def _device_calls() -> list[str]:
    text = DEVICE_CALLS.read_text(encoding="utf-8")
    names = {
        "CUDA": [
            f"cuda{runtime}" if runtime else event
            for runtime, event in re.findall(r"^(?:RUNTIME_HOOK\((\w+)|DEVICE_HOOK\(\w+, (\w+))", text, re.M)
        ],
        "comm": re.findall(r"^COMM_HOOK\(\w+, (\w+)", text, re.M),
    }
    return [
        f"| `{category}` | {' '.join(f'`{name}`' for name in dict.fromkeys(found))} |"
        for category, found in names.items()
    ]


def _io_calls() -> list[str]:
    calls: dict[tuple[str, str], list[str]] = {}
    text = IO_CALLS.read_text(encoding="utf-8")
    for category, name, role in re.findall(r"^IO_CALL\((\w+), (\w+), (\w+)", text, re.MULTILINE):
        calls.setdefault((category, role), []).append(f"`{name}`")
    return [f"| `{category}` | {role} | {' '.join(names)} |" for (category, role), names in calls.items()]


def tables() -> dict[str, str]:
    """The generated tables, by the name of their marker."""
    settings = [
        f"| `{each.env}` | {_kind(each)} | {_default(each)} | {_escaped(each.doc)} |" for each in SETTINGS
    ]
    fields = [f"| `{f.name}` | {f.type} | {f.records} | {f.doc} |" for f in FIELDS]
    args = [f"| `{a.name}` | {a.type} | {a.where} | {a.doc} |" for a in ARGS]
    kinds = [f"| `{m.name}` | {m.args_name} | {m.args_value} |" for m in METADATA]
    return {
        "settings": "\n".join(["| variable | value | default | meaning |", "|---|---|---|---|", *settings]),
        "fields": "\n".join(["| field | type | in | meaning |", "|---|---|---|---|", *fields]),
        "args": "\n".join(["| argument | type | in | meaning |", "|---|---|---|---|", *args]),
        "vocabulary": "\n".join(["| annotation | `cat` | `name` |", "|---|---|---|", *_vocabulary()]),
        "io_calls": "\n".join(["| `cat` | counts as | `name` |", "|---|---|---|", *_io_calls()]),
        "device_calls": "\n".join(["| `cat` | `name` |", "|---|---|", *_device_calls()]),
        "metadata": "\n".join(["| `name` | `args.name` | `args.value` |", "|---|---|---|", *kinds]),
    }


def refreshed(page: str, markers: tuple[str, ...]) -> str:
    """`page` with fresh tables between its markers."""
    for name in markers:
        begin, end = f"<!-- table: {name} -->\n", "\n<!-- end -->"
        head, found, rest = page.partition(begin)
        if not found or end not in rest:
            raise SystemExit(f"a page has lost its marker {begin.strip()!r}")
        page = head + begin + tables()[name] + rest[rest.index(end) :]
    return page


def main() -> int:
    """Write or check."""
    stale = 0
    for file, markers in PAGES.items():
        path = HERE / file
        before = path.read_text(encoding="utf-8")
        after = refreshed(before, markers)
        if after == before:
            continue
        stale += 1
        if "--check" in sys.argv[1:]:
            print(f"docs/{file} is not fresh; run python docs/generate.py")
        else:
            path.write_text(after, encoding="utf-8")
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
