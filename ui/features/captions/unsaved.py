"""The question about a caption or a mask that could not be saved. No Tk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ui.features.captions.session import Unsaved
from ui.loop.interaction import Answer, Interaction

Choice = Literal["stay", "discard", "mine"]
_BLOCKED = (Answer("stay", "Stay here", is_default=True), Answer("discard", "Discard my changes"))
_CHANGED = (
    Answer("stay", "Stay here"),
    Answer("discard", "Use the file"),
    Answer("mine", "Keep mine", is_default=True),
)


def ask_about(interaction: Interaction, unsaved: Unsaved, reason: str) -> Choice:
    """Ask what to do with a file; `reason` is why it cannot be written, "" if another program changed it."""
    answers: Sequence[Answer] = _BLOCKED if reason else _CHANGED
    name = unsaved.file.name
    message = f"{name} was changed by another program while you edited it here."
    if reason:
        message = f"{name} cannot be written: {reason}. Free it and save again, or discard your changes."
    match interaction.choose("Not saved", message, answers, "warning"):
        case "discard":
            return "discard"
        case "mine":
            return "mine"
        case _:
            return "stay"
