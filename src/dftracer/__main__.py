"""`python -m dftracer`."""

import sys

from dftracer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
