"""Prints the packages of the extra [docs], so that `make docs` need not build the package itself."""

import re
from pathlib import Path

text = (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8")
extra = re.search(r"^docs = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
assert extra is not None, "pyproject.toml has no extra [docs]"
print(*re.findall(r'"([^"]+)"', extra[1]))
