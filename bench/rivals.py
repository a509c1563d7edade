"""Makes the virtual environment of the rivals (`.venv-rivals`), which share our import name."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

__all__ = ["ENVIRONMENT", "REQUIREMENTS", "ensure", "interpreter"]

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv-rivals"
REQUIREMENTS = Path(__file__).with_name("rivals.txt")


def interpreter() -> Path:
    return ENVIRONMENT / "bin" / "python"


def ensure() -> Path:
    """Create or complete the environment; a stamp of the pins makes the second call free."""
    stamp = ENVIRONMENT / "rivals.stamp"
    pins = REQUIREMENTS.read_text()
    if stamp.is_file() and stamp.read_text() == pins:
        return interpreter()
    venv.create(ENVIRONMENT, with_pip=True, symlinks=True)
    subprocess.run(
        [interpreter(), "-m", "pip", "install", "--quiet", "--requirement", REQUIREMENTS],
        check=True,
    )
    stamp.write_text(pins)
    return interpreter()


if __name__ == "__main__":
    sys.stdout.write(f"{ensure()}\n")
