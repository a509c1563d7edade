"""What every Python process does first when its environment asks for automatic tracing.

`dftracer_auto.pth` in the site directory imports this where DFTRACER_AUTO is set; `dftracer run` has its own
sitecustomize import it too, for installations whose .pth files nobody reads (PYTHONPATH, `pip --target`).
"""

from __future__ import annotations

import os
import sys

_OFF = ("", "off", "0", "false", "no")  # as the settings read them, which are not loaded for these
_begun = False


def begin() -> None:
    """Once per process."""
    global _begun  # noqa: PLW0603
    wanted = os.environ.get("DFTRACER_AUTO", "").strip().lower()
    if _begun or wanted in _OFF:
        return
    _begun = True
    try:
        from dftracer import _session  # noqa: PLC0415 - nothing is loaded where nothing is asked for

        if _session.SETTINGS.auto == "TORCH":
            from dftracer import auto  # noqa: PLC0415

            auto.install()
    except Exception as error:  # the program must start whatever happens here
        sys.stderr.write(f"dftracer: automatic tracing is off: {type(error).__name__}: {error}\n")


begin()
