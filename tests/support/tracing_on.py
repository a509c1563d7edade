"""Tracing on in the process of the tests, and as it was in those that the tests start.

The switch is read when the annotations are first imported, by whichever test module comes first.
"""

from __future__ import annotations

import importlib
import os

_before = os.environ.get("DFTRACER_ENABLE")
importlib.import_module("dftracer.testing")  # turns it on
importlib.import_module("dftracer.python")  # reads it
if _before is None:
    del os.environ["DFTRACER_ENABLE"]
else:
    os.environ["DFTRACER_ENABLE"] = _before
