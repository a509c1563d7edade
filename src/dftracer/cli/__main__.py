"""`python -m dftracer.cli`."""

import sys

from dftracer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
