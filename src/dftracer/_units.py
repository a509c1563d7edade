"""Another name of what `_text` has."""

from dftracer._text import bytes_text, count_text, counted, plural, seconds_text

__all__ = ["bytes_text", "count_text", "counted", "plural", "seconds_text"]
