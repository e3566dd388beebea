"""The caption and mask editor, opened for a concept. No Tk."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ui.context import Context

LABEL = "Captions and masks…"


def edit_captions(context: Context, number: int, *, closed: Callable[[], object]) -> None:
    """Open the editor for the concept at a number; `closed` is called when it closes."""
    from ui.editors.captions.opening import open_caption_editor  # needs NumPy, which the window starts without

    open_caption_editor(context, number, closed=closed)
