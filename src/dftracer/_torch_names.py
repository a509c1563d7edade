"""Another name of what `_torch_files` has."""

from dftracer._torch_files import STRUCTURAL, plain_name

__all__ = ["STRUCTURAL", "plain_name"]
