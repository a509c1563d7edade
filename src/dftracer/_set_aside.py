"""Another name of what `_torch_files` has."""

from dftracer._torch_files import COPIES, EARLIER, EXPORTED, is_set_aside, mark

__all__ = ["COPIES", "EARLIER", "EXPORTED", "is_set_aside", "mark"]
