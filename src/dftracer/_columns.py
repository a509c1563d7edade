"""Another name of what `_text` has."""

from dftracer._text import Column, Fitted, fit, shortened

__all__ = ["Column", "Fitted", "fit", "shortened"]
