"""Written by the build from pyproject.toml."""

__version__: str
