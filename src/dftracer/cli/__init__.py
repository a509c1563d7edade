"""The command `dftracer`: its verbs are in `dftracer.cli.commands`."""

from dftracer.cli.main import main

__all__ = ["main"]
