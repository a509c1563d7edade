"""The gate measures with the bench's own loops; `bench` is a folder of the repository, not installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
