"""What all tabs of a concept's editor share."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from modules.data.concept import Concept
from ui.features.concepts.scanning import Result, Scans
from ui.forms.context import Context
from ui.forms.layout import FormView
from ui.forms.records import Group
from ui.widgets.panel import Panel
from ui.widgets.scroll import ScrollFrame
from ui.widgets.theme import PAD
from ui.widgets.thumbnails import ThumbnailCache

FORM_WIDTH = 420
CAPTIONS_LABEL = "Captions and masks…"


@dataclass(frozen=True, slots=True)
class Editing:
    """The concept at a path of the config, its folder's scan, and the thumbnails."""

    context: Context
    scans: Scans
    thumbnails: ThumbnailCache
    path: str
    scan_again: Callable[[], None]

    @property
    def concept(self) -> Concept:
        """The concept as it is now."""
        concept: Concept = self.context.form.value(self.path)
        return concept

    @property
    def number(self) -> int:
        """Its place among the concepts."""
        return int(self.path.rpartition(".")[2])

    @property
    def scan(self) -> Result | None:
        """The scan of its folder; a reason if that failed; None while it is unknown."""
        return self.scans.of(self.concept)


class EditorTab(Protocol):
    """A tab, built when it is first shown."""

    frame: Panel

    def follow(self) -> None:
        """Called when the tab is shown, and while it is, when the config or the scan has changed."""

    def close(self) -> None:
        """Called once, before the window is destroyed."""


def add_form(master: tk.Misc, context: Context, groups: tuple[Group, ...], *, has_all_levels: bool) -> FormView:
    """Add a scrolling form at the left of a tab."""
    px = context.theme.px
    scroll = ScrollFrame(master, context.theme)
    scroll.configure(width=px(FORM_WIDTH))
    scroll.grid_propagate(False)
    scroll.grid(row=0, column=0, sticky="nsew", padx=(px(PAD), 0), pady=(px(PAD), 0))
    scroll.body.columnconfigure(0, weight=1)
    view = FormView(scroll.body, context, lambda: groups, max_columns=1, has_all_levels=has_all_levels)
    view.grid(row=0, column=0, sticky="new")
    view.build()
    return view
