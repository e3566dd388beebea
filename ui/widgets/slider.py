"""A slider over whole numbers from zero."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from ui.widgets.ctk import ctk, release_master
from ui.widgets.theme import Theme


class Slider(ctk.CTkSlider):  # type: ignore[misc]
    """Calls back with its number when moved."""

    def __init__(
        self, master: tk.Misc, theme: Theme, last: int, on_move: Callable[[int], object], *, on: str = "window"
    ) -> None:
        super().__init__(
            master,
            from_=0,
            to=last,
            number_of_steps=last,
            command=lambda value: on_move(round(value)),
            bg_color=theme.pair(on),
            fg_color=theme.pair("track"),
            progress_color=theme.pair("accent"),
            button_color=theme.pair("knob"),
            button_hover_color=theme.pair("knob_hover"),
        )
        release_master(master)
        self.set(0)
