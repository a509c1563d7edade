"""Another name of what `_terminal` has."""

from dftracer._terminal import (
    ascii_is_asked_for,
    fit_streams,
    has_unicode,
    in_stream_encoding,
    original_environment,
)

__all__ = ["ascii_is_asked_for", "fit_streams", "has_unicode", "in_stream_encoding", "original_environment"]
