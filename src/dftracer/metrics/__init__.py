"""Figures of a running training for monitoring systems and experiment trackers.

``DFTRACER_METRICS=prometheus:9464,tensorboard:runs`` asks for them; docs/guide-metrics.md describes every
target. They are sums that the recorder keeps anyway; each target has a thread of its own that reads them, so
that none waits for another, and no step waits for any.
"""

from __future__ import annotations

import importlib
import os

from dftracer import _session
from dftracer._session import before_finalize

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_exporter: Any = None
_registered = False
_asked = ""  # by code, besides the setting


def ask(targets: str | None) -> None:
    """Export to these as well, as if `DFTRACER_METRICS` named them."""
    global _asked  # noqa: PLW0603 - one per process
    if targets and targets not in _asked.split("\n"):
        _asked = f"{_asked}\n{targets}" if _asked else targets


def training_begins() -> None:
    """This process trains: export its figures from now on, if that is wanted and has not begun."""
    global _exporter, _registered  # noqa: PLW0603 - one per process
    wanted = ",".join(filter(None, [_session.SETTINGS.metrics, *_asked.split("\n")]))
    if not wanted or _exporter is not None:
        return
    if not _registered:
        _registered = True
        before_finalize(training_ends)
        os.register_at_fork(after_in_child=_forked)
    _session.at_child_exit(training_ends, -1)
    exporter: Any = importlib.import_module("dftracer.metrics._exporter")
    _exporter = exporter.Exporter(wanted, _session.SETTINGS.metrics_ms / 1000)


def training_ends() -> None:
    """Tell every target the last figures; one that does not answer is not waited for."""
    global _exporter
    exporter, _exporter = _exporter, None
    if exporter is not None:
        exporter.stop()


def _forked() -> None:
    """A child has none of the threads; it may train on its own."""
    global _exporter
    exporter, _exporter = _exporter, None
    if exporter is not None:
        exporter.close_in_child()
