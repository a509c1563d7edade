"""The preloaded library reads settings and launchers as the Python side does: one table, two readers."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dftracer import _config, _core, _rank

ROOT = Path(__file__).resolve().parents[2]

VALUES = {
    "bool": ["1", "0", "true", "TRUE", " on ", "yes", "y", "T", "off", "No", "f", "2", "maybe", " "],
    "int": ["0", "7", " 42 ", "+5", "-1", "1_000", "1__0", "_1", "1.5", "0x10", "10", "1000", "9" * 30, "x"],
    "size": [
        "0", "4096", "64K", "64k", "64KB", "64 KiB", "65536B", "1.5G", "1.5 GiB", "0.1M", "1.5", "2T", "1.B",
        "1.5B", ".5K", "1K5", "12KM", "-1K", "1e3", "1,5K", "100000000000T", "9223372036854775807",
        "9223372036854775808", "3.999999999999999999999999999K", "1 K B", "IB", "KIB",
        "256 K", "1M", "1GIB", "1IB",
    ],
    "choice": ["FUNCTION", "preload", " Hybrid ", "WARNING", "warn", "error", "info ", "DEBUG", "none", "7"],
    "path": ["./x", " spaced ", "/a/b:c", "ü/ß", "~"],
    "dirs": ["all", "/a:/b", " /a", ":"],
    "list": ["prometheus:9464", "textfile:/a,wandb", " a, b", ","],
    "text": ["a name", " spaced ", "k=v,l=w", "ü/ß", "\t"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("DFTRACER_", "SLURM_", "OMPI_", "PMI")) or name in (
            "RANK",
            "LOCAL_RANK",
            "WORLD_SIZE",
        ):
            monkeypatch.delenv(name)


def _python_side() -> dict[str, int | str]:
    settings = _config.load_settings()
    values = {s.name: getattr(settings, s.name) for s in _config.SETTINGS}
    return {k: int(v) if isinstance(v, bool) else v for k, v in values.items()}


def test_defaults() -> None:
    """Every row, in both."""
    values, facts = _core.environment()
    assert values == _python_side()
    assert facts == {}


@pytest.mark.parametrize("setting", _config.SETTINGS, ids=lambda s: s.name)
def test_every_setting(setting: _config.Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of value, right and wrong."""
    if setting.name == "configuration":
        pytest.skip("names the file that the library does not read")
    for raw in VALUES["choice" if setting.choices else setting.kind]:
        monkeypatch.setenv(setting.env, raw)
        assert _core.environment()[0] == _python_side(), raw


def _facts() -> dict[str, str]:
    rank = _config.rank_info()
    found = {
        "rank": rank.rank,
        "local_rank": rank.local_rank,
        "world_size": rank.world_size,
        "launcher": rank.source,
    }
    return {k: str(v) for k, v in found.items() if v is not None}


def _environments() -> Iterator[dict[str, str]]:
    for _, ranks, local, size, _ in _rank.LAUNCHERS:
        for r, m, s in itertools.product(ranks, local, size):
            yield {r: "3", m: "1", s: "8"}
            yield {r: " 03 ", s: "x"}
            yield {r: "-1", m: "1"}
            yield {r: "12345678901"}
    every = {n: str(i) for i, row in enumerate(_rank.LAUNCHERS) for n in row[1]}
    for first in list(every):
        yield dict(every)
        del every[first]


def test_every_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its variables, alone and beside those of the others."""
    for variables in _environments():
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            assert _core.environment()[1] == _facts(), variables


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
