"""The command `dftracer`: its verbs are in `dftracer.cli.commands`."""

import sys

from dftracer.cli.main import main as main


def launched() -> None:
    """As the script that pip writes, which native/launcher.cpp names as the first word and does not load."""
    del sys.argv[0]
    sys.exit(main())
