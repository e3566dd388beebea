"""The preview that the window draws below a group of settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BarPreview:
    """Bars from left to right, the words at both ends of their axis, and a caption.

    `reference` is the height of a dashed line to compare with. If nothing can be drawn there are no bars, and the
    caption is the reason, unless a field shows it. With `is_line` the bars are the points of a line.
    """

    bars: tuple[float, ...]
    reference: float
    left: str
    right: str
    caption: str
    is_line: bool = False
