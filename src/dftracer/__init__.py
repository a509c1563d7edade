"""Shows where a training job spends its time."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dftracer._session import start, stop
    from dftracer._version import __version__
    from dftracer.notebook import load_ipython_extension

__all__ = ["__version__", "load_ipython_extension", "start", "stop"]

# Imported on first use: programs that only annotate need none of them.
_LATER = {
    "__version__": "dftracer._version",  # written by the build from pyproject.toml
    "start": "dftracer._session",
    "stop": "dftracer._session",
    "load_ipython_extension": "dftracer.notebook",
}


def __getattr__(name: str) -> object:
    if name in _LATER:
        value = getattr(__import__(_LATER[name], fromlist=[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
