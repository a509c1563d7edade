"""The library that traces unmodified programs: `LD_PRELOAD=$(python -m dftracer.preload)`.

`eval "$(python -m dftracer.preload --env)"` sets the whole environment of such programs, with the settings of
the file that DFTRACER_CONFIGURATION names: the library itself reads the environment only.
"""

from __future__ import annotations

import os
import sys

from dftracer import _config

TYPE_CHECKING = False  # `dftracer run` needs little of this, and its program waits
if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["library_path", "main", "preload_environment", "settings_environment"]

# Passed to the library in another way, or used only by Python programs.
_NOT_FOR_THE_LIBRARY = ("enable", "init", "configuration", "log_level")


def library_path() -> Path:
    """Where the preload library is, by a name that LD_PRELOAD can hold: no blanks, no colons."""
    from pathlib import Path  # noqa: PLC0415

    return Path(library_name())


def library_name() -> str:
    """The same as text."""
    library = os.path.join(os.path.dirname(__file__), "libdftracer_preload.so")
    return str(_linked(library)) if ":" in library or len(library.split()) != 1 else library


def _linked(name: str) -> Path:
    """The library by way of a link to its folder, in a place where nobody else can put one."""
    import contextlib  # noqa: PLC0415
    import hashlib  # noqa: PLC0415
    import stat  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    library = Path(name)
    directory = Path(f"/dev/shm/dftracer-{os.geteuid()}")
    link = directory / f"library-{hashlib.sha256(os.fsencode(library)).hexdigest()[:16]}"
    with contextlib.suppress(OSError):  # without the link, the library's own path is used
        directory.mkdir(mode=0o700, exist_ok=True)
        status = directory.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077:
            with contextlib.suppress(FileExistsError):
                link.symlink_to(library.parent)
            if link.readlink() == library.parent:
                return link / library.name
    return library


def preload_environment() -> dict[str, str]:
    """The variables of a traced program: what this process's environment and settings file say together."""
    settings = _config.load_settings()
    before = os.environ.get("LD_PRELOAD")
    library = library_name()
    found = {
        "LD_PRELOAD": f"{library}:{before}" if before else library,
        "DFTRACER_ENABLE": "1",
        "DFTRACER_INIT": "HYBRID" if settings.init == "HYBRID" else "PRELOAD",
    }
    return {**found, **settings_environment(settings)}


def settings_environment(settings: _config.Settings) -> dict[str, str]:
    """The variables that say what these settings say, for a library that reads no settings file."""
    found = {}
    for setting in _config.SETTINGS:
        value = getattr(settings, setting.name)
        if setting.name in _NOT_FOR_THE_LIBRARY or value == setting.default:
            continue
        found[setting.env] = str(int(value)) if isinstance(value, bool) else str(value)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print the path, or the environment."""
    import argparse  # noqa: PLC0415
    import shlex  # noqa: PLC0415

    parser = argparse.ArgumentParser(prog="python -m dftracer.preload", description=__doc__)
    parser.add_argument(
        "--env", action="store_true", help="print shell commands that set the environment instead of the path"
    )
    given = parser.parse_args(arguments)
    path = library_path()
    if not path.exists():
        print(f"{path} does not exist: this installation was built without the native part", file=sys.stderr)
        return 1
    if given.env:
        for name, value in preload_environment().items():
            print(f"export {name}={shlex.quote(value)}")
    else:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
