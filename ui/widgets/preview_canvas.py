"""An image fitted to its place, with an outline on it: the crop of a training image."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence

from PIL import Image, ImageTk

from ui.widgets.drawn_canvas import DrawnCanvas
from ui.widgets.theme import Theme

Corner = tuple[float, float]  # as shares of the width and the height


class PreviewCanvas(DrawnCanvas):
    """Call `show` with an image; `outline` are corners on it."""

    def __init__(self, master: tk.Misc, theme: Theme, *, on: str = "card") -> None:
        super().__init__(master, theme, on=on, width=160, height=160)
        self.outline: tuple[Corner, ...] = ()
        self._image: Image.Image | None = None
        self._photo: ImageTk.PhotoImage | None = None
        self._message = ""
        self.apply_theme()

    def show(self, image: Image.Image | None, outline: Sequence[Corner] = (), *, message: str = "") -> None:
        """Show another image, or a message in its place."""
        self._image, self.outline, self._message = image, tuple(outline), message
        self.draw()

    def draw(self) -> None:
        """Redraw everything."""
        self.delete("all")
        width, height = self.winfo_width(), self.winfo_height()
        if self._image is None or width <= 1:
            self._photo = None
            self.create_text(
                width / 2, height / 2, text=self._message, width=max(60, width - 20), justify="center",
                fill=self.theme.colour("faint"), font=self.theme.font("small"),
            )  # fmt: skip
            return
        factor = min(width / self._image.width, height / self._image.height)
        size = (max(1, int(self._image.width * factor)), max(1, int(self._image.height * factor)))
        method = Image.Resampling.NEAREST if factor >= 3 else Image.Resampling.BILINEAR
        self._photo = ImageTk.PhotoImage(self._image.resize(size, method, reducing_gap=2.0), master=self)
        left, top = (width - size[0]) / 2, (height - size[1]) / 2
        self.create_image(left, top, image=self._photo, anchor="nw")
        if self.outline:
            points = [c for x, y in self.outline for c in (left + x * size[0], top + y * size[1])]
            self.create_polygon(points, fill="", outline="black", width=self.theme.px(4), tags="outline")
            self.create_polygon(
                points, fill="", outline=self.theme.colour("accent"), width=self.theme.px(2), tags="outline"
            )
