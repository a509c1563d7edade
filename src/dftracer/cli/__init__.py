"""The command `dftracer`: one verb per module in `dftracer.cli.commands`."""

from dftracer.cli.main import main

__all__ = ["main"]
