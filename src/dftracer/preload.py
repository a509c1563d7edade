"""The library that traces programs which know nothing of it: `LD_PRELOAD=$(python -m dftracer.preload)`."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["library_path", "main"]


def library_path() -> Path:
    """Where the preload library lies."""
    return Path(__file__).with_name("libdftracer_preload.so")


def main() -> int:
    """Print the path."""
    path = library_path()
    if not path.exists():
        print(f"{path} is not there: this installation was made without the native part", file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
