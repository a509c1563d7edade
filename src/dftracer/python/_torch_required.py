"""torch, or a sentence that says what to install."""

from __future__ import annotations

import importlib
import re
from typing import Any

__all__ = ["MINIMUM", "require_torch"]

MINIMUM = (2, 5, 1)


def require_torch(extra: str) -> Any:
    """The torch module; an ImportError names the extra to install when it is missing or too old."""
    wanted = ".".join(map(str, MINIMUM))
    advice = f"install it with: pip install pydftracer[{extra}]"
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise ImportError(f"this part of dftracer needs torch >= {wanted} ({error}); {advice}") from error
    found = str(getattr(torch, "__version__", "0"))
    numbers = tuple(int(part) for part in re.findall(r"\d+", found.split("+", maxsplit=1)[0])[:3])
    if numbers < MINIMUM:
        raise ImportError(f"this part of dftracer needs torch >= {wanted}, found {found}; {advice}")
    return torch
