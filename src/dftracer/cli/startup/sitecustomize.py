"""Begins recording in every Python process under `dftracer run` and `dftracer collect`, then lets the
user's own sitecustomize run.
"""

import os
import sys


def _start() -> None:
    try:
        if os.environ.get("DFTRACER_COLLECT"):
            import dftracer.collect._auto as auto

            auto.install()
        import dftracer._session  # importing it joins the announced session

        if os.environ.get("DFTRACER_AUTO"):
            import dftracer.auto

            dftracer.auto.begin()
    except Exception as e:  # the traced program must run whatever happens here
        sys.stderr.write(f"dftracer: not recording: {e}\n")


def _next_sitecustomize() -> None:
    # What `importlib.machinery` and `importlib.util` pass on, which load much more: every process pays.
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    own = os.path.dirname(os.path.abspath(__file__))
    path = [p for p in sys.path if os.path.abspath(p) != own]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_start()
_next_sitecustomize()
