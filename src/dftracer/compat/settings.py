"""Settings as text, for programs that query them."""

from __future__ import annotations

from dftracer._config import SETTINGS, Settings

__all__ = ["setting_text"]


def setting_text(settings: Settings, variable: str) -> str:
    """The effective value of an environment variable, as text; "" for an unknown one."""
    for setting in SETTINGS:
        if setting.env == variable:
            value = getattr(settings, setting.name)
            return str(int(value)) if isinstance(value, bool) else str(value)
    return ""
