"""Another name of what `_text` has."""

from dftracer._text import bar, bar_room, print_table

__all__ = ["bar", "bar_room", "print_table"]
