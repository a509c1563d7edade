"""Files and distributions where other installations have theirs."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import dftracer
from support.process import clean_environment
from support.trace import read_directory

PACKAGE = Path(str(dftracer.__file__)).parent


def test_the_preload_library_below_lib(tmp_path: Path) -> None:
    """Job scripts that preload `dftracer/lib/libdftracer_preload.so` trace programs and Python alike."""
    library = PACKAGE / "lib" / "libdftracer_preload.so"
    data = tmp_path / "data"
    data.mkdir()
    env = clean_environment(
        LD_PRELOAD=str(library),
        DFTRACER_ENABLE="1",
        DFTRACER_INIT="PRELOAD",
        DFTRACER_DATA_DIR=str(data),
        DFTRACER_LOG_FILE=str(tmp_path / "traces" / "t"),
    )
    code = "import sys; from dftracer.python import ai\nwith ai.data.item: open(sys.argv[1]).read()"
    subprocess.run(["cp", "/etc/passwd", data / "copy"], env=env, check=True)
    subprocess.run([sys.executable, "-c", code, data / "copy"], env=env, check=True)
    trace = read_directory(tmp_path / "traces")
    assert trace.one("item").cat == "data"
    assert len([e for e in trace.events if e.name.startswith("open")]) >= 2


def _doctor(env: dict[str, str]) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "dftracer.cli", "doctor", "--quick", "--json"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    checks = json.loads(done.stdout)["checks"]
    found: dict[str, object] = next(c for c in checks if c["check"] == "other packages")
    return found


def test_doctor_names_who_else_owns_our_files(tmp_path: Path) -> None:
    """Two distributions with one import name overwrite each other: `doctor` says which and what to do."""
    assert _doctor(clean_environment())["ok"] is True
    info = tmp_path / "dftracer-2.2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dftracer\nVersion: 2.2.0\n")
    (info / "RECORD").write_text("dftracer/__init__.py,,\ndftracer/dftracer.so,,\nother/x.py,,\n")
    theirs = _doctor(clean_environment(PYTHONPATH=str(tmp_path)))
    assert theirs["ok"] is False
    assert "dftracer 2.2.0" in str(theirs["text"])
    assert "pip uninstall dftracer" in str(theirs["text"])


def test_utilities_of_others_are_no_clash(tmp_path: Path) -> None:
    """A distribution that only adds a folder of its own to `dftracer/` owns none of our files."""
    info = tmp_path / "dftracer_utils-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dftracer-utils\nVersion: 0.1\n")
    (info / "RECORD").write_text("dftracer/utils/__init__.py,,\ndftracer/lib/libutils.so,,\n")
    assert _doctor(clean_environment(PYTHONPATH=str(tmp_path)))["ok"] is True
    assert importlib.util.find_spec("dftracer.utils") is None


def test_the_generator_of_traces_in_its_former_place() -> None:
    """The same objects, and an analysis that uses it does not switch tracing on."""
    code = (
        "import os; from dftracer.load import synthetic; print(os.environ.get('DFTRACER_ENABLE'))\n"
        "from dftracer.testing import synthetic as new; print(synthetic.training_run is new.training_run)"
    )
    for before in (None, "0"):
        env = clean_environment(DFTRACER_ENABLE=before)
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == [str(before), "True"]
