"""The settings file: YAML and TOML, flat and in DFTracer's sections, with and without third-party parsers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dftracer import _messages
from dftracer._config import Settings, load_settings
from support.process import clean_environment

YAML = """
# as DFTracer's users write it
enable: true
profiler:
  init: PRELOAD
  log_file: /tmp/run/trace   # a prefix
  data_dirs: ["/data", '/scratch']
  compression: off
  interval: 250
features:
  metadata: false
  core_affinity: yes
  tid: false
  io:
    enable: true
    posix: true
    stdio: false
  aggregation:
    enable: true
    type: SELECTIVE
    file: /tmp/run/rules.yaml
internal:
  log_level: WARN
  bind_signals: true
  write_buffer_size: 1M
"""
TOML = """
enable = true
DFTRACER_DATA_DIR = "/data:/scratch"
[profiler]
init = "PRELOAD"
log_file = '/tmp/run/trace' # a prefix
compression = false
interval = 250
[features]
metadata = false
core_affinity = true
tid = false
io = { enable = true, posix = true, stdio = false }
aggregation = { enable = true, type = "SELECTIVE", file = "/tmp/run/rules.yaml" }
[internal]
log_level = "WARN"
bind_signals = true
write_buffer_size = 1_048_576
"""
EXPECTED = Settings(
    {
        "enable": True,
        "init": "PRELOAD",
        "log_file": "/tmp/run/trace",
        "data_dir": "/data:/scratch",
        "trace_compression": False,
        "inc_metadata": False,
        "set_core_affinity": True,
        "disable_tids": True,
        "disable_stdio": True,
        "enable_aggregation": True,
        "aggregation_type": "SELECTIVE",
        "aggregation_file": "/tmp/run/rules.yaml",
        "trace_interval_ms": 250,
        "log_level": "WARN",
        "bind_signals": True,
        "write_buffer_size": 1 << 20,
    }
)


@pytest.fixture(autouse=True)
def _fresh_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_messages, "_printed", set())
    monkeypatch.setattr(_messages, "_level", 0)


def test_yaml_without_pyyaml_costs_one_line_that_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)  # None: not importable
    assert same_but_for_the_path(load(tmp_path / "c.yaml", YAML), Settings())
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"dftracer: cannot read DFTRACER_CONFIGURATION={tmp_path / 'c.yaml'}: YAML needs PyYAML, which is not"
        " installed: pip install PyYAML, or write the settings as TOML"
    )
    assert same_but_for_the_path(load(tmp_path / "c.toml", TOML), EXPECTED)
    for name in ("c.json", "noext"):
        assert load(tmp_path / name, '{"dftracer": {"ring_size": "2M"}}').ring_size == 2 << 20
    assert capsys.readouterr().err == ""


def load(path: Path, text: str | bytes, **environ: str) -> Settings:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_settings({"DFTRACER_CONFIGURATION": str(path), **environ})


def same_but_for_the_path(settings: Settings, expected: Settings) -> bool:
    return {**settings.for_core(), "configuration": ""} == {**expected.for_core(), "configuration": ""}


@pytest.mark.parametrize(
    ("name", "text"), [("c.yaml", YAML), ("c.toml", TOML), ("noext", YAML), ("noext", TOML)]
)
def test_dftracers_sections_are_understood(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file written for DFTracer means the same here, in YAML and in TOML, whatever parser is there."""
    assert same_but_for_the_path(load(tmp_path / name, text), EXPECTED)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "text",
    [
        "ring_size: 2M\nflush-ms: 50\n",
        "DFTRACER_RING_SIZE: 2M\ndftracer_flush_ms: 50\n",
        "dftracer:\n  Ring_Size: 2M\n  FLUSH_MS: 50\n",
        '{"dftracer": {"ring_size": "2M", "flush_ms": 50}}',
        'ring_size = "2M"\nflush_ms = 50\n',
        'dftracer.ring_size = "2M"\ndftracer.flush_ms = 50\n',
        '[dftracer]\nDFTRACER_RING_SIZE = "2M"\nflush_ms = 50\n',
    ],
)
def test_keys_take_any_case_with_or_without_prefix_and_section(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = load(tmp_path / "settings", text)
    assert (settings.ring_size, settings.flush_ms) == (2 << 20, 50)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.yaml", "enable: [1, 2"),
        ("c.yaml", "enable: true\n\tinit: x\n"),
        ("c.yaml", "a: b: c\n"),
        ("c.yaml", "- just\n- a list\n"),
        ("c.yaml", b"\xff\xfe\x00binary"),
        ("c.toml", "enable = maybe\n"),
        ("c.toml", "[features\n"),
    ],
)
def test_a_malformed_file_costs_one_line(
    name: str, text: str | bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert same_but_for_the_path(load(tmp_path / name, text), Settings())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"dftracer: DFTRACER_CONFIGURATION={tmp_path / name} is malformed and ignored: ")


def test_a_missing_file_costs_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nowhere.yaml"
    assert load_settings({"DFTRACER_CONFIGURATION": str(path)}).enable is False
    assert (
        capsys.readouterr().err
        == f"dftracer: cannot read DFTRACER_CONFIGURATION={path}: No such file or directory\n"
    )


def test_an_unknown_key_and_a_bad_value_cost_a_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.yaml"
    settings = load(path, "rign_size: 2M\nfeatures: {oi: {}}\nflush_ms: soon\nmax_stall_us: 7\n")
    assert (settings.flush_ms, settings.max_stall_us) == (100, 7)
    assert capsys.readouterr().err.splitlines() == [
        f"dftracer: unknown setting rign_size in {path}; ignored",
        f"dftracer: unknown setting features.oi in {path}; ignored",
        f'dftracer: flush_ms="soon" in {path} is not a whole number; using 100',
    ]


@pytest.mark.parametrize(("level", "shown"), [("ERROR", 0), ("WARN", 1)])
def test_dftracers_settings_without_a_counterpart_are_a_warning(
    level: str, shown: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load(tmp_path / "c.yaml", "gotcha:\n  priority: 1\n", DFTRACER_LOG_LEVEL=level)
    assert len(capsys.readouterr().err.splitlines()) == shown


def test_a_file_is_not_read_when_the_environment_says_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = load(tmp_path / "c.yaml", "enable: true\n: :\n", DFTRACER_ENABLE="0")
    assert settings.enable is False
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_what_is_not_a_regular_file_is_not_waited_for(kind: str, tmp_path: Path) -> None:
    """A pipe without a writer would hold up the start of the program for ever."""
    file = tmp_path / "settings.toml"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "directory":
        file.mkdir()
    else:
        file.symlink_to("/dev/zero")
    done = subprocess.run(
        [sys.executable, "-c", "import dftracer.python; print('the program')"],
        env=clean_environment(DFTRACER_ENABLE="1", DFTRACER_CONFIGURATION=str(file), DFTRACER_DISABLE_IO="1"),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout == "the program\n"
    assert done.stderr.count("\n") == 1
    assert str(file) in done.stderr
