"""Says where the time of a training job goes."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dftracer._version import __version__

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    if name == "__version__":
        # Written by the build from pyproject.toml; programs that only annotate never need it.
        from dftracer._version import __version__  # noqa: PLC0415

        globals()["__version__"] = __version__
        return __version__
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
