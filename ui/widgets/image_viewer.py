"""A window that shows one of several images, large: a sample over a run, or the images of a concept."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from functools import partial

import PIL.Image
from PIL import ImageTk

from ui.loop.background import Job, cancel
from ui.loop.pump import Pump
from ui.widgets.controls import Button, Slider
from ui.widgets.dialog import Window
from ui.widgets.image_grid import Tile
from ui.widgets.panel import Panel, Text
from ui.widgets.theme import GAP, PAD, Theme
from ui.widgets.thumbnails import load_fitted

_SIZE = (760, 720)
Actions = Callable[[int], Sequence[tuple[str, Callable[[], object]]]]
"""Returns what can be done with the image at an index, always as much of it: labels of buttons and commands."""


class ImageViewer(Window):
    """Steps through the images by slider, buttons and arrow keys; `actions` also have buttons."""

    def __init__(
        self,
        root: tk.Tk,
        theme: Theme,
        pump: Pump,
        tiles: Sequence[Tile],
        index: int,
        title: str = "Images",
        actions: Actions | None = None,
    ) -> None:
        super().__init__(root, theme, title)
        self.tiles = tiles
        self.index = index
        self.buttons: list[Button] = []
        self._actions = actions
        self._pump = pump
        self._photo: ImageTk.PhotoImage | None = None
        self._job: Job | None = None
        px = theme.px
        self.image = Text(self, theme, anchor="center")
        footer = Panel(self, theme)
        footer.pack(side="bottom", fill="x", padx=px(PAD), pady=px(12))
        self.caption = Text(footer, theme, wrap_px=_SIZE[0] - 2 * PAD)
        self.caption.pack(anchor="w", pady=(0, px(8)))
        self._action_row = Panel(footer, theme)
        if actions is not None:
            self._action_row.pack(fill="x", pady=(0, px(8)))
        self._add_steps(footer)
        self.image.pack(fill="both", expand=True, padx=px(PAD), pady=(px(PAD), 0))
        self.image.bind("<Configure>", lambda _e: pump.redraw_soon(self, self._load))
        for key, by in (("<Left>", -1), ("<Right>", 1), ("<Prior>", -10), ("<Next>", 10)):
            self.bind(key, partial(self._by_key, by))
        self.appear(*_SIZE)
        self.focus_set()
        self.show(index)

    def show(self, index: int) -> None:
        """Show the image at an index."""
        self.index = min(len(self.tiles) - 1, max(0, index))
        self.caption.set_text(self.tiles[self.index].caption)
        self.place_text.set_text(f"{self.index + 1} of {len(self.tiles)}")
        self.slider.set(self.index)
        self._show_actions()
        self._load()

    def destroy(self) -> None:
        """Also cancel the image that is being loaded."""
        self._pump.forget(self)
        cancel(self._job)
        self._photo = None  # here, on the Tk thread, not on the garbage collector's
        super().destroy()

    def _add_steps(self, footer: Panel) -> None:
        row = Panel(footer, self.theme)
        row.pack(fill="x")
        Button(row, self.theme, "‹", lambda: self.show(self.index - 1), width=36).pack(side="left")
        self.slider = Slider(row, self.theme, max(1, len(self.tiles) - 1), self.show)
        self.slider.pack(side="left", fill="x", expand=True, padx=GAP)
        Button(row, self.theme, "›", lambda: self.show(self.index + 1), width=36).pack(side="left")
        self.place_text = Text(row, self.theme, colour="muted")
        self.place_text.pack(side="left", padx=(self.theme.px(PAD), 0))

    def _show_actions(self) -> None:
        for number, (label, _) in enumerate(self._actions(self.index) if self._actions is not None else ()):
            if number == len(self.buttons):
                button = Button(self._action_row, self.theme, label, partial(self._act, number))
                button.pack(side="left", padx=(0, GAP))
                self.buttons.append(button)
            self.buttons[number].configure(text=label)

    def _act(self, number: int) -> None:
        assert self._actions is not None
        _, command = self._actions(self.index)[number]
        command()
        if self.winfo_exists():
            self._show_actions()

    def _by_key(self, by: int, _event: object) -> None:
        self.show(self.index + by)

    def _load(self) -> None:
        cancel(self._job)
        width, height = self.image.winfo_width(), self.image.winfo_height()
        if width <= 1:
            return
        work = partial(load_fitted, self.tiles[self.index].path, width, height, enlarge="pixels")
        self._job = self._pump.background.run(work, self._show_image, self._could_not_load)

    def _show_image(self, image: PIL.Image.Image) -> None:
        self._photo = ImageTk.PhotoImage(image, master=self)
        self.image.configure(image=self._photo, text="")

    def _could_not_load(self, error: Exception) -> None:
        self._photo = None
        self.image.configure(image="", text=f"This image cannot be shown: {error}")
