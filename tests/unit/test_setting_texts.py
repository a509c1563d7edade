"""What the texts of settings and the variables of launchers mean; one native reader reads them for Python and
for the preloaded library.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dftracer import _config

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {setting.name: setting for setting in _config.SETTINGS}
SIZE, NUMBER = "is not a size", "is not a whole number"
SWITCH = "is not a switch (1/0, true/false, on/off, yes/no)"
LEVEL = "is not one of ERROR, WARN, INFO, DEBUG"
LARGE, STALL = "is out of range 0..9223372036854775807", "is out of range 0..60000000"

# By setting: what a text stands for, or what is wrong with it.
TEXTS: dict[str, dict[str, bool | int | str]] = {
    "disable_io": {
        **dict.fromkeys(("1", "true", "TRUE", " on ", "yes", "y", "T"), True),
        **dict.fromkeys(("0", "off", "No", "f", "\x1cfalse\t"), False),
        **dict.fromkeys(("2", "maybe", " "), SWITCH),
    },
    "max_stall_us": {
        "0": 0, "7": 7, " 42 ": 42, "+5": 5, "1_000": 1000, "010": 10, "-1": STALL, "60000001": STALL,
        "9" * 30: STALL, "-" + "9" * 30: STALL,
        **dict.fromkeys(("1__0", "_1", "1_", "1.5", "0x10", "x", "", "\x1f1", "٣"), NUMBER),
    },
    "rotate_size": {
        "0": 0, "4096": 4096, "64K": 1 << 16, "64k": 1 << 16, "64KB": 1 << 16, "64 KiB": 1 << 16,
        "65536B": 1 << 16, "1.5G": 3 << 29, "1.5 GiB": 3 << 29, "0.1M": 104857, "2T": 2 << 40,
        "256 K": 1 << 18, "1GIB": 1 << 30, "9223372036854775807": (1 << 63) - 1,
        "3.999999999999999999999999999K": 4095,
        "9223372036854775808": LARGE, "100000000000T": LARGE, "1" * 30: LARGE,
        **dict.fromkeys(("1.5", "1.B", "1.5B", ".5K", "1K5", "12KM", "-1K", "1e3", "1,5K", "1 K B"), SIZE),
        **dict.fromkeys(("IB", "KIB", "1IB", "1BIB", "1" * 31, ""), SIZE),
    },
    "ring_size": {"1M": 1 << 20, "100000": "is not a power of two"},
    "log_level": {
        "WARNING": "WARN", "warn": "WARN", "error": "ERROR", "info ": "INFO", "DEBUG": "DEBUG",
        **dict.fromkeys(("none", "7"), LEVEL),
    },
    "auto": {**dict.fromkeys(("1", "on", "Torch"), "TORCH"), **dict.fromkeys(("0", "no", "OFF"), "OFF")},
    "log_file": {each: each for each in ("./x", " spaced ", "/a/b:c", "ü/ß", "~", "\udcff")},
    "data_dir": {each: each for each in ("all", "/a:/b", " /a", ":")},
    "metrics": {each: each for each in ("prometheus:9464", "textfile:/a,wandb", " a, b", ",")},
    "run_name": {"a name": "a name", " spaced ": "spaced", "ü/ß": "ü/ß", "\t": "", "\udcff ": "\udcff"},
}  # fmt: skip


def test_every_kind_is_here() -> None:
    kinds = {setting.kind for setting in _config.SETTINGS}
    assert {SETTINGS[name].kind for name in TEXTS} == kinds


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name: str) -> None:
    for raw, expected in TEXTS[name].items():
        try:
            found = SETTINGS[name].read(raw)
        except _config.BadValue as problem:
            found = str(problem)
        assert (type(found), found) == (type(expected), expected), raw


def test_numbers_have_no_unit() -> None:
    """Typed values of a file or a call."""
    assert SETTINGS["rotate_size"].read(4096) == 4096
    for name, raw, problem in (
        ("rotate_size", -5, LARGE),
        ("rotate_size", 1 << 70, LARGE),
        ("rotate_size", 1.5, SIZE),
        ("rotate_size", True, SIZE),
        ("max_stall_us", 7.0, NUMBER),
        ("max_stall_us", False, NUMBER),
        ("max_stall_us", -(10**5000), STALL),
        ("run_name", ["a"], "is not a single value"),
        ("log_file", 7, "is not a path"),
        ("log_file", "a\0b", "is not a path"),
    ):
        with pytest.raises(_config.BadValue) as found:
            SETTINGS[name].read(raw)
        assert str(found.value) == problem
    assert SETTINGS["disable_io"].read(True) is True
    assert SETTINGS["log_file"].read(Path("/a")) == "/a"
    assert SETTINGS["data_dir"].read(["/a", Path("/b")]) == "/a:/b"


def _environments() -> Iterator[tuple[dict[str, str], tuple[int | None, int | None, int | None, str | None]]]:
    for source, ranks, local, size, _ in _config.LAUNCHERS:
        for r, m, s in itertools.product(ranks, local, size):
            yield {r: "3", m: "1", s: "8"}, (3, 1, 8, source)
            yield {r: " 03 ", s: "x"}, (3, None, None, source)
            yield {r: "-1", m: "1"}, (None, None, None, None)
            yield {r: "12345678901"}, (None, None, None, None)
    # Beside those of the others: the first in the table counts.
    every = [(name, row[0]) for row in _config.LAUNCHERS for name in row[1]]
    for i, (_, source) in enumerate(every):
        found = _config.rank_info({name: str(k) for k, (name, _) in enumerate(every) if k >= i})
        assert (found.rank, found.source) == (i, source)


def test_every_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its variables, in a given environment and in that of the process."""
    for name in {n for row in _config.LAUNCHERS for group in row[1:4] for n in group}:
        monkeypatch.delenv(name, raising=False)
    for variables, expected in _environments():
        assert _config.rank_info(variables) == _config.RankInfo(*expected), variables
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            assert _config.rank_info() == _config.RankInfo(*expected), variables


def test_other_text_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that are no text are no number."""
    monkeypatch.setitem(os.environ, "RANK", "1\udcff")
    assert _config.rank_info(dict(os.environ)).source != "torchrun"


def test_the_table_is_fresh() -> None:
    """native/session/tables.hpp is as its generator writes it."""
    result = subprocess.run(
        [sys.executable, str(ROOT / "native" / "generate.py"), "--check"],
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
