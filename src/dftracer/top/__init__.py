"""TOP: the last seconds of a run, live on a terminal or as one frame."""

from dftracer.report.moment import Frame, RankRow, take_frame
from dftracer.top.screen import frame_text, print_frame

__all__ = ["Frame", "RankRow", "frame_text", "print_frame", "take_frame"]
