"""Settings: sources, precedence, values, and mistakes that cost one line and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dftracer import _config, _messages
from dftracer._config import SETTINGS, Settings, load_settings


@pytest.fixture(autouse=True)
def _fresh_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_messages, "_printed", set())
    monkeypatch.setattr(_messages, "_level", 0)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_an_empty_environment_gives_the_defaults() -> None:
    """Without any source every setting has the default of the table."""
    settings = load_settings({})
    assert {s.name: getattr(settings, s.name) for s in SETTINGS} == {s.name: s.default for s in SETTINGS}
    assert settings == Settings()


def test_the_class_declares_exactly_the_rows_of_the_table() -> None:
    """Attribute declarations (for type checkers) and table cannot drift apart."""
    assert list(Settings.__annotations__) == [setting.name for setting in SETTINGS]


def test_every_default_is_a_legal_value() -> None:
    """Reading a default back gives the default."""
    for setting in SETTINGS:
        assert setting.read(setting.default) == setting.default


def test_settings_are_frozen() -> None:
    """A resolved setting cannot be changed or deleted."""
    settings = load_settings({})
    with pytest.raises(AttributeError):
        settings.enable = True
    with pytest.raises(AttributeError):
        del settings.enable


@pytest.mark.parametrize("text", ["1", "true", "True", "ON", "yes", " 1 "])
def test_words_that_turn_tracing_on(text: str) -> None:
    assert load_settings({"DFTRACER_ENABLE": text}).enable is True


@pytest.mark.parametrize("text", ["0", "false", "OFF", "no", ""])
def test_words_that_leave_tracing_off(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert load_settings({"DFTRACER_ENABLE": text}).enable is False
    assert lines(capsys) == []


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("65536", 1 << 16),
        ("64K", 1 << 16),
        ("64k", 1 << 16),
        ("64KiB", 1 << 16),
        ("64 KB", 1 << 16),
        ("1M", 1 << 20),
        ("0.5MiB", 1 << 19),
        ("1G", 1 << 30),
        ("131072B", 1 << 17),
    ],
)
def test_sizes_take_suffixes(text: str, size: int) -> None:
    assert load_settings({"DFTRACER_RING_SIZE": text}).ring_size == size


@pytest.mark.parametrize(
    ("variable", "text", "line"),
    [
        ("RING_SIZE", "abc", 'dftracer: DFTRACER_RING_SIZE="abc" is not a size; using 4194304'),
        ("RING_SIZE", "-1", 'dftracer: DFTRACER_RING_SIZE="-1" is not a size; using 4194304'),
        ("RING_SIZE", "1.5", 'dftracer: DFTRACER_RING_SIZE="1.5" is not a size; using 4194304'),
        ("RING_SIZE", "100000", 'dftracer: DFTRACER_RING_SIZE="100000" is not a power of two; using 4194304'),
        (
            "RING_SIZE",
            "4K",
            'dftracer: DFTRACER_RING_SIZE="4K" is out of range 65536..1073741824; using 4194304',
        ),
        ("FLUSH_MS", "5", 'dftracer: DFTRACER_FLUSH_MS="5" is out of range 10..1000; using 100'),
        ("FLUSH_MS", "1e2", 'dftracer: DFTRACER_FLUSH_MS="1e2" is not a whole number; using 100'),
        (
            "INIT",
            "LATER",
            'dftracer: DFTRACER_INIT="LATER" is not one of FUNCTION, PRELOAD, HYBRID; using FUNCTION',
        ),
        (
            "ENABLE",
            "ture",
            'dftracer: DFTRACER_ENABLE="ture" is not a switch (1/0, true/false, on/off, yes/no); using 0',
        ),
    ],
)
def test_a_bad_value_costs_one_line_and_leaves_the_default(
    variable: str, text: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert load_settings({"DFTRACER_" + variable: text}) == Settings()
    assert lines(capsys) == [line]


@given(st.dictionaries(st.sampled_from([s.env for s in SETTINGS if s.name != "configuration"]), st.text()))
def test_no_environment_raises(environ: dict[str, str]) -> None:
    """Whatever the variables hold, there are settings, and every one is of its type and in its range."""
    settings = load_settings(environ)
    for setting in SETTINGS:
        value = getattr(settings, setting.name)
        assert type(value) is type(setting.default)
        if isinstance(value, int):
            assert setting.low <= value <= setting.high


def test_an_argument_wins_over_environment_file_and_default(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("flush_ms: 20\nring_size: 2M\nmax_stall_us: 5\n")
    environ = {"DFTRACER_CONFIGURATION": str(file), "DFTRACER_FLUSH_MS": "30", "DFTRACER_RING_SIZE": "4M"}
    settings = load_settings(environ, flush_ms=40, log_file=None)
    assert (settings.flush_ms, settings.ring_size, settings.max_stall_us, settings.rotate_keep) == (
        40,
        4 << 20,
        5,
        0,
    )
    assert settings.log_file == "./trace"


def test_a_bad_variable_leaves_the_file_in_charge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("flush_ms: 20\n")
    settings = load_settings({"DFTRACER_CONFIGURATION": str(file), "DFTRACER_FLUSH_MS": "soon"})
    assert settings.flush_ms == 20
    assert lines(capsys) == ['dftracer: DFTRACER_FLUSH_MS="soon" is not a whole number; using 20']


def test_paths_and_lists_come_from_calls_as_they_are() -> None:
    settings = load_settings({}, log_file=Path("/a/b"), data_dir=["/x", Path("/y")])
    assert (settings.log_file, settings.data_dir) == ("/a/b", "/x:/y")


def test_the_core_gets_plain_values() -> None:
    values = load_settings({"DFTRACER_LOG_LEVEL": "warning"}).for_core()
    assert values["log_level"] == 1
    assert set(values) == {setting.name for setting in SETTINGS}
    assert {type(value) for value in values.values()} <= {bool, int, str}


def test_the_log_level_filters_messages(capsys: pytest.CaptureFixture[str]) -> None:
    load_settings({"DFTRACER_LOG_LEVEL": "INFO"})
    _messages.error("an error")
    _messages.warn("a warning")
    _messages.info("a fact")
    _messages.debug("a detail")
    assert lines(capsys) == ["dftracer: an error", "dftracer: a warning", "dftracer: a fact"]


def test_each_message_is_one_line_once(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        _messages.error("two\nlines")
    assert lines(capsys) == ["dftracer: two lines"]


def test_a_closed_stderr_hurts_nobody() -> None:
    """A program without stderr can be configured wrongly."""
    code = (
        "import sys; sys.stderr = None\nfrom dftracer import _config\n_config.load_settings()\nprint('fine')"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path), "DFTRACER_RING_SIZE": "x"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "fine\n"


def test_reading_settings_imports_nothing_heavy() -> None:
    """With tracing off the settings cost no import but their own."""
    code = (
        "import os, sys; before = set(sys.modules)\n"
        "from dftracer import _config\n_config.load_settings()\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    new = {name for name in result.stdout.split() if not name.startswith("dftracer")}
    assert new <= {"__future__"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (None, None, None, None)),
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "SLURM_PROCID": "0"}, (3, 1, 8, "torchrun")),
        (
            {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"},
            (2, 0, 4, "openmpi"),
        ),
        ({"PMI_RANK": "5", "PMI_SIZE": "6", "SLURM_PROCID": "0"}, (5, None, 6, "pmi")),
        ({"PMIX_RANK": "5"}, (5, None, None, "pmix")),
        ({"MV2_COMM_WORLD_RANK": "1"}, (1, None, None, "mvapich2")),
        ({"FLUX_TASK_RANK": "1", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_SIZE": "2"}, (1, 1, 2, "flux")),
        ({"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "2"}, (1, None, 2, "jsm")),
        ({"PALS_RANKID": "7", "PALS_LOCAL_RANKID": "3"}, (7, 3, None, "pals")),
        ({"SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_NTASKS": "16"}, (9, 1, 16, "slurm")),
        ({"RANK": "captain", "SLURM_PROCID": "9"}, (9, None, None, "slurm")),
    ],
)
def test_ranks_come_from_the_launcher(
    environ: dict[str, str], expected: tuple[int | None, int | None, int | None, str | None]
) -> None:
    rank = _config.rank_info(environ)
    assert (rank.rank, rank.local_rank, rank.world_size, rank.source) == expected
