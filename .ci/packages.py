"""Print the packages of extras, or of the build (`build-system`): `python .ci/packages.py EXTRA...`.

They are installed without pydftracer itself, which is being compiled meanwhile.
"""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8"))


def packages(extra: str) -> list[str]:
    """Return the requirements of an extra, with those of the extras that it names."""
    if extra == "build-system":
        return list(PROJECT["build-system"]["requires"])
    found: list[str] = []
    for requirement in PROJECT["project"]["optional-dependencies"][extra]:
        own = re.fullmatch(r"pydftracer\[(.*)\]", requirement)
        found += [each for name in own[1].split(",") for each in packages(name)] if own else [requirement]
    return found


print(*dict.fromkeys(each for extra in sys.argv[1:] for each in packages(extra)))
