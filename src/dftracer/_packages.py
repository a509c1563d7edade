"""Packages by the names used to install them, and the extras that include them."""

from __future__ import annotations

import re
from importlib import metadata
from typing import NamedTuple

__all__ = ["Requirement", "advice", "extra_of", "extras", "install_name", "module_of"]

_OURS = "pydftracer"
_FOR_DEVELOPERS = {"docs", "test", "dev"}
# For packages whose import name is not the name to install.
_INSTALLED_AS = {
    "google": "protobuf",
    "yaml": "PyYAML",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "PIL": "pillow",
    "cv2": "opencv-python",
    "IPython": "ipython",
    "pynvml": "nvidia-ml-py",
    "attr": "attrs",
    "dateutil": "python-dateutil",
}
_IMPORTED_AS = {package: module for module, package in _INSTALLED_AS.items()} | {
    "protobuf": "google.protobuf",
    "opentelemetry-sdk": "opentelemetry.sdk",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http",
}


class Requirement(NamedTuple):
    """A package of an extra, with the oldest supported version."""

    name: str
    least: str | None


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def install_name(module: str) -> str:
    """What to install for a module."""
    top = module.partition(".")[0]
    return _INSTALLED_AS.get(top, top)


def module_of(package: str) -> str:
    """What to import of an installed package."""
    known = {_plain(k): v for k, v in _IMPORTED_AS.items()}
    return known.get(_plain(package)) or package.replace("-", "_")


def extras() -> dict[str, list[Requirement]]:
    """Every extra for users, with the packages it includes; from the package's own metadata."""
    try:
        lines = metadata.requires(_OURS) or []
    except metadata.PackageNotFoundError:
        return {}
    direct: dict[str, list[tuple[str, str | None, str]]] = {}
    for line in lines:
        found = re.match(r"\s*([\w.-]+)\s*(?:\[([^]]*)\])?\s*([^;]*);?(.*)", line)
        extra = re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", found[4]) if found else None
        if found is None or extra is None or extra[1] in _FOR_DEVELOPERS:
            continue
        least = re.search(r">=\s*([\w.]+)", found[3])
        direct.setdefault(extra[1], []).append((found[1], least and least[1], found[2] or ""))

    def resolved(name: str, seen: frozenset[str]) -> list[Requirement]:
        out: list[Requirement] = []
        for package, least, inner in direct.get(name, []):
            if _plain(package) == _OURS:
                for each in inner.split(","):
                    if each.strip() not in seen:
                        out += resolved(each.strip(), seen | {each.strip()})
            else:
                out.append(Requirement(package, least))
        return list(dict.fromkeys(out))

    return {name: resolved(name, frozenset({name})) for name in direct}


def extra_of(package: str) -> str | None:
    """The smallest extra that includes a package."""
    wanted = _plain(package)
    holding = [
        (len(needs), name)
        for name, needs in extras().items()
        if wanted in {_plain(need.name) for need in needs}
    ]
    return min(holding)[1] if holding else None


def advice(package: str, extra: str | None = None) -> str:
    """The command that installs a package: through the extra that includes it, if there is one."""
    wanted = extra or extra_of(package)
    return f"pip install 'pydftracer[{wanted}]'" if wanted else f"pip install {package}"
