"""Optional packages: imported on use, and a missing one is named together with the extra that includes it."""

from __future__ import annotations

import importlib
import re
from typing import Any, NamedTuple

_OURS = "pydftracer"
_FOR_DEVELOPERS = {"docs", "test", "dev"}
# For modules whose name is not the name to install.
_INSTALLED_AS = {
    "google": "protobuf",
    "google.protobuf": "protobuf",
    "yaml": "PyYAML",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "PIL": "pillow",
    "cv2": "opencv-python",
    "IPython": "ipython",
    "pynvml": "nvidia-ml-py",
    "attr": "attrs",
    "dateutil": "python-dateutil",
    "opentelemetry": "opentelemetry-api",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
}
_IMPORTED_AS = {package: module for module, package in _INSTALLED_AS.items()}


class Requirement(NamedTuple):
    """A package of an extra, with the oldest supported version."""

    name: str
    least: str | None


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def install_name(module: str) -> str:
    """What to install for a module."""
    name = module
    while name not in _INSTALLED_AS and "." in name:
        name = name.rpartition(".")[0]
    return _INSTALLED_AS.get(name, name)


def module_of(package: str) -> str:
    """What to import of an installed package."""
    known = {_plain(k): v for k, v in _IMPORTED_AS.items()}
    return known.get(_plain(package)) or package.replace("-", "_")


def extras() -> dict[str, list[Requirement]]:
    """Every extra for users, with the packages it includes; from the package's own metadata."""
    from importlib import metadata  # noqa: PLC0415 - slow to import

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


def not_installed(module: str, extra: str | None = None) -> str:
    """Says that the package of a module is missing, and what to install."""
    package = install_name(module)
    return f"{package} is not installed: {advice(package, extra)}"


def not_loading(package: str, why: object, extra: str | None = None) -> str:
    """Says that an installed package cannot be imported, and what to do."""
    wanted = extra or extra_of(package)
    whose = f" (pydftracer[{wanted}])" if wanted else ""
    how = f"pip install --force-reinstall {package}"
    return f"{package}{whose} is installed but does not load ({why}): {how}"


# --- Importing one, or saying what to install


class MissingExtra(ImportError):
    """A package of an extra is not installed."""


def need(module: str, extra: str | None = None) -> Any:
    """Import `module`, or say what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        top = module.partition(".")[0]
        if e.name is not None and e.name.partition(".")[0] != top:
            raise
        missing = isinstance(e, ModuleNotFoundError)
        text = not_installed(module, extra) if missing else not_loading(install_name(module), e, extra)
        raise MissingExtra(text, name=top) from None


MINIMUM_TORCH = (2, 5, 1)


def require_torch(extra: str) -> Any:
    """The torch module; an ImportError names the extra to install when it is missing or too old."""
    wanted = ".".join(map(str, MINIMUM_TORCH))
    how = advice("torch", extra)
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise MissingExtra(f"this part of dftracer needs torch >= {wanted} ({error}): {how}") from error
    found = str(getattr(torch, "__version__", "0"))
    numbers = tuple(int(part) for part in re.findall(r"\d+", found.split("+", maxsplit=1)[0])[:3])
    if numbers < MINIMUM_TORCH:
        raise MissingExtra(f"this part of dftracer needs torch >= {wanted}, found {found}: {how}")
    return torch
