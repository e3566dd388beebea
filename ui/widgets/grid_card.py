"""The cards of a grid, and the handler that it calls."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import tkinter as tk


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text in the colour of a token."""

    text: str
    colour: str = "muted"


@dataclass(frozen=True, slots=True)
class GridCard:
    """A card. `image` is the key of its image, as `load` accepts it; without an image, `note` is in its place.

    `share` is drawn as a thin bar below the first line; None leaves it out.
    """

    title: str
    is_on: bool
    lines: tuple[Line, ...] = ()
    share: float | None = None
    image: Hashable = None
    note: str = ""


class Handler(Protocol):
    """The commands of a grid. Cards are given by their number."""

    def open_card(self, number: int) -> object:
        """Open a card."""

    def toggle(self, numbers: Sequence[int]) -> object:
        """Switch cards on or off."""

    def remove(self, numbers: Sequence[int]) -> object:
        """Remove cards."""

    def move(self, numbers: Sequence[int], before: int) -> object:
        """Move cards before another one; the number of cards stands for the end."""

    def selected(self) -> object:
        """Called after another selection."""

    def pointed_at(self, number: int | None, event: tk.Event[Any]) -> object:
        """Called when the pointer reaches another card; None for none."""

    def open_menu(self, number: int, event: tk.Event[Any]) -> object:
        """Open the menu of a card."""
