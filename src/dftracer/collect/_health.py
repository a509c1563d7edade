"""A part that fails is switched off, named once, and reported; the training goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dftracer import _messages

__all__ = ["Health"]


class Health:
    """Which parts have failed, and every warning of the run, for the manifest."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._off: set[str] = set()

    def warn(self, text: str) -> None:
        """Say something once on stderr and keep it for the report."""
        if text not in self.warnings:
            self.warnings.append(text)
            _messages.always(f"collect: {text}")

    def note(self, text: str) -> None:
        """Keep something for the report without a line on stderr."""
        if text not in self.warnings:
            self.warnings.append(text)

    def works(self, part: str) -> bool:
        """Whether this part has not failed yet."""
        return part not in self._off

    def fail(self, part: str, error: BaseException | str) -> None:
        """Switch a part off."""
        if part not in self._off:
            self._off.add(part)
            what = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
            self.warn(f"{part} is off from here on: {what}")

    @contextlib.contextmanager
    def guard(self, part: str) -> Iterator[None]:
        """An error inside switches off `part` and nothing else."""
        try:
            yield
        except Exception as error:
            self.fail(part, error)
