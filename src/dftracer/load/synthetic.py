"""The former name of `dftracer.testing.synthetic`. Unlike that one, it leaves tracing switched as it was."""

import os

_before = os.environ.get("DFTRACER_ENABLE")

from dftracer.testing.synthetic import Process, Run, training_run  # noqa: E402 - `testing` turns tracing on

__all__ = ["Process", "Run", "training_run"]

if _before is None:
    os.environ.pop("DFTRACER_ENABLE", None)
else:
    os.environ["DFTRACER_ENABLE"] = _before
