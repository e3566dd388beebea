"""The caption and mask editor of a concept, where this version of the program has one. No Tk."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

LABEL = "Captions and masks…"
_MODULE = "ui.editors.captions.opening"

Opener = Callable[..., object]


@cache
def has_caption_editor() -> bool:
    """Return whether there is an editor, without importing it."""
    try:
        return importlib.util.find_spec(_MODULE) is not None
    except ModuleNotFoundError:
        return False


def edit_captions(context: Any, number: int, *, closed: Callable[[], object]) -> None:
    """Open the editor for the concept at a number; `closed` is called when it closes."""
    open_editor: Opener = importlib.import_module(_MODULE).open_caption_editor
    open_editor(context, number, closed=closed)
