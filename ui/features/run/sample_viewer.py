"""A window that shows a sample large: other steps and prompts by the arrow keys, two compared by a slider, its star."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import PIL.Image
from PIL import ImageTk

from ui.features.run.sample_grid import Place, SampleTable
from ui.forms.context import Context
from ui.loop.background import Job, cancel
from ui.widgets.controls import Button
from ui.widgets.dialog import Window
from ui.widgets.menu import make_menu, open_at
from ui.widgets.panel import Panel, Text
from ui.widgets.theme import GAP, PAD
from ui.widgets.thumbnails import load_fitted, load_whole

_SIZE = (900, 780)
_KEY_SHARE = 0.05
_KEYS_TIP = (
    "Left, Right: step. Up, Down: prompt. F: full screen. 1: original size. C: compare. S: star.\n"
    "While comparing, drag the edge, or move it with Shift and Left or Right."
)


@dataclass(frozen=True, slots=True)
class Wipe:
    """Two images over each other, the left one up to a share of the width."""

    share: float = 0.5

    def at(self, x: float, left: float, width: float) -> Wipe:
        """Return the wipe with its edge at a point; `left` and `width` describe the images."""
        return Wipe(min(1.0, max(0.0, (x - left) / max(1.0, width))))

    def by(self, share: float) -> Wipe:
        """Return the wipe with its edge moved by a share of the width."""
        return Wipe(min(1.0, max(0.0, self.share + share)))


class SampleViewer(Window):
    """Shows the sample at a place of the table; `update_samples` passes a table with newer samples.

    `on_star(path)` toggles a star, `on_save(step)` saves the model of a step.
    """

    def __init__(
        self,
        context: Context,
        table: SampleTable,
        place: Place,
        starred: Collection[Path],
        *,
        on_star: Callable[[Path], object],
        on_save: Callable[[int], object],
    ) -> None:
        super().__init__(context.root, context.theme, "Sample")
        self.table, self.place, self.starred = table, place, starred
        self.compared: Place | None = None
        self.wipe = Wipe()
        self.is_original = False
        self.images: tuple[PIL.Image.Image, ...] = ()
        self._context, self._on_star, self._on_save = context, on_star, on_save
        self._photos: list[ImageTk.PhotoImage] = []
        self._job: Job | None = None
        self._offset = (0, 0)
        self._drag_start: tuple[int, int, int, int] | None = None
        self._menu: tk.Menu | None = None
        self.canvas = tk.Canvas(self, highlightthickness=0, borderwidth=0)
        self._add_footer()
        self.canvas.pack(fill="both", expand=True, padx=context.theme.px(PAD), pady=(context.theme.px(PAD), 0))
        self._bind_events()
        self.at_close(
            partial(context.pump.forget, self),
            partial(context.pump.forget, (self, "draw")),
            lambda: cancel(self._job),
            lambda: self._photos.clear(),  # here, on the Tk thread, not on the garbage collector's
        )
        self.appear(*_SIZE)
        self.focus_set()
        self.show(place)

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        super().apply_theme()
        if hasattr(self, "canvas"):
            self.canvas.configure(background=self.theme.colour("window"))

    # -- what is shown

    def show(self, place: Place) -> None:
        """Show the sample at a place."""
        self.place = place
        sample = self.table.at(*place)
        if sample is None:
            return
        number, total = place[1] + 1, len(self.table.steps)
        self.caption.set_text(f"Step {sample.step:,} ({number} of {total})   {self.table.title(place[0])}")
        if self.compared is not None and self.compared[0] != place[0]:
            self.compared = self.table.before(place)
        self._show_star()
        self._load()

    def update_samples(self, table: SampleTable, starred: Collection[Path]) -> None:
        """Update the samples and the stars; the shown sample stays."""
        before = [self.table.at(*p) if p is not None else None for p in (self.place, self.compared)]
        self.table, self.starred = table, starred
        if before[0] is not None and before[0] in table.samples:
            self.place = table.place_of(before[0])
        self.compared = table.place_of(before[1]) if before[1] is not None and before[1] in table.samples else None
        self._show_star()

    def move(self, rows: int, columns: int) -> None:
        """Show the next sample in a direction."""
        place = self.table.move(self.place, rows, columns)
        if place != self.place:
            self.show(place)

    def compare(self, column: int | None) -> None:
        """Compare with the sample of this prompt at another step; None shows one sample again."""
        self.compared = None if column is None else (self.place[0], column)
        self.wipe = Wipe()
        self._load()

    def toggle_compare(self) -> None:
        """Compare with the first step of the prompt, or show one sample again."""
        other = self.table.before(self.place)
        self.compare(None if self.compared is not None or other == self.place else other[1])

    def toggle_original(self) -> None:
        """Switch between the original size and the one that fits."""
        self.is_original = not self.is_original
        self._offset = (0, 0)
        self.original_button.configure(text="Fit" if self.is_original else "Original size")
        self._load()

    def toggle_full(self) -> None:
        """Fill the screen, or no longer."""
        self.attributes("-fullscreen", not self.attributes("-fullscreen"))

    def star(self) -> None:
        """Star the sample, or remove its star."""
        sample = self.table.at(*self.place)
        if sample is not None:
            self._on_star(Path(sample.path))

    def save_model(self) -> None:
        """Save the model of the shown step."""
        sample = self.table.at(*self.place)
        if sample is not None:
            self._on_save(sample.step)

    def close(self) -> None:
        """Leave the full screen first, then close."""
        if self.attributes("-fullscreen"):
            self.toggle_full()
        else:
            super().close()

    # -- building

    def _add_footer(self) -> None:
        px = self.theme.px
        footer = Panel(self, self.theme)
        footer.pack(side="bottom", fill="x", padx=px(PAD), pady=px(12))
        self.caption = Text(footer, self.theme, wrap_px=_SIZE[0] - 2 * PAD)
        self.caption.pack(anchor="w", pady=(0, px(8)))
        row = Panel(footer, self.theme)
        row.pack(fill="x")
        for text, step in (("‹", -1), ("›", 1)):
            Button(row, self.theme, text, partial(self.move, 0, step), width=36).pack(side="left", padx=(0, GAP))
        self.original_button = Button(row, self.theme, "Original size", self.toggle_original)
        self.compare_button = Button(row, self.theme, "Compare ▾", self._open_steps)
        self.star_button = Button(row, self.theme, "☆ Star", self.star, width=80)
        full = Button(row, self.theme, "Full screen", self.toggle_full)
        for button in (self.original_button, self.compare_button, self.star_button, full):
            button.pack(side="left", padx=(0, GAP))
            self._context.tips.attach(button, lambda: _KEYS_TIP)
        self.save_button = Button(row, self.theme, "Save this step's model…", self.save_model)
        self.save_button.pack(side="right")

    def _bind_events(self) -> None:
        for key, rows, columns in (("<Left>", 0, -1), ("<Right>", 0, 1), ("<Up>", -1, 0), ("<Down>", 1, 0)):
            self.bind(key, lambda _e, rows=rows, columns=columns: self.move(rows, columns))  # type: ignore[misc]
        for key, act in (("1", self.toggle_original), ("f", self.toggle_full), ("c", self.toggle_compare),
                         ("s", self.star)):  # fmt: skip
            self.bind(key, lambda _e, act=act: act())  # type: ignore[misc]
        for key, by in (("<Shift-Left>", -_KEY_SHARE), ("<Shift-Right>", _KEY_SHARE)):
            self.bind(key, lambda _e, by=by: self._set_wipe(self.wipe.by(by)))  # type: ignore[misc]
        self.canvas.bind("<Configure>", lambda _e: self._context.pump.redraw_soon(self, self._load))
        self.canvas.bind("<Button-1>", self._press)
        self.canvas.bind("<B1-Motion>", self._drag)
        self.canvas.bind("<Double-Button-1>", lambda _e: self.toggle_full() if self.compared is None else None)

    def _open_steps(self) -> None:
        self._menu = make_menu(self, self.theme)
        for column in range(len(self.table.steps) - 1, -1, -1):
            sample = self.table.at(self.place[0], column)
            if sample is not None and column != self.place[1]:
                mark = "✓" if self.compared == (self.place[0], column) else "  "
                self._menu.add_command(label=f"{mark}  step {sample.step:,}", command=partial(self.compare, column))
        self._menu.add_separator()
        self._menu.add_command(label="     Do not compare", command=partial(self.compare, None))
        open_at(self._menu, self.compare_button)

    def _show_star(self) -> None:
        sample = self.table.at(*self.place)
        is_starred = sample is not None and Path(sample.path) in self.starred
        self.star_button.configure(text="★ Starred" if is_starred else "☆ Star")

    # -- images

    def _paths(self) -> list[Path]:
        places = (self.place,) if self.compared is None else (self.place, self.compared)
        return [Path(s.path) for p in places if (s := self.table.at(*p)) is not None]

    def _load(self) -> None:
        cancel(self._job)
        width, height = self.canvas.winfo_width(), self.canvas.winfo_height()
        if width > 1:
            work = partial(_load_images, self._paths(), None if self.is_original else (width, height))
            self._job = self._context.pump.background.run(work, self._show_images, self._show_failure)

    def _show_images(self, images: tuple[PIL.Image.Image, ...]) -> None:
        self.images = images
        self._draw()

    def _show_failure(self, error: Exception) -> None:
        self.images = ()
        self.canvas.delete("all")
        self.canvas.create_text(
            self.canvas.winfo_width() / 2, self.canvas.winfo_height() / 2, text=f"This image cannot be shown: {error}",
            width=self.canvas.winfo_width() - 40, fill=self.theme.colour("muted"), font=self.theme.font("body"),
        )  # fmt: skip

    @property
    def image_left(self) -> float:
        """The left edge of the image on the canvas."""
        return (self.canvas.winfo_width() - self.images[0].width) / 2 + self._offset[0] if self.images else 0.0

    def _draw(self) -> None:
        self.canvas.delete("all")
        if not self.images:
            return
        image, left = self.images[0], self.image_left
        top = (self.canvas.winfo_height() - image.height) / 2 + self._offset[1]
        self._photos = [ImageTk.PhotoImage(image, master=self)]
        self.canvas.create_image(left, top, image=self._photos[0], anchor="nw")
        if len(self.images) > 1:
            self._draw_compared(left, top, image.width, image.height)

    def _draw_compared(self, left: float, top: float, width: int, height: int) -> None:
        """Draw the other image left of the edge, at the size of the first, and write the steps at both sides."""
        edge = round(width * self.wipe.share)
        if edge:
            other = self.images[1] if self.images[1].size == (width, height) else self.images[1].resize((width, height))
            self._photos.append(ImageTk.PhotoImage(other.crop((0, 0, edge, height)), master=self))
            self.canvas.create_image(left, top, image=self._photos[1], anchor="nw", tags="other")
        x = left + edge
        colour = self.theme.colour
        self.canvas.create_line(
            x, top, x, top + height, fill=colour("accent"), width=self.theme.px(2), tags=("edge", "line")
        )
        radius, middle = self.theme.px(7), top + height / 2
        self.canvas.create_oval(
            x - radius, middle - radius, x + radius, middle + radius, fill=colour("accent"), width=0, tags="edge"
        )
        assert self.compared is not None
        for place, at, anchor in ((self.compared, left + 6, "nw"), (self.place, left + width - 6, "ne")):
            self._write_step(place, at, top + 6, anchor)

    def _write_step(self, place: Place, x: float, y: float, anchor: Any) -> None:
        text = self.canvas.create_text(
            x, y, text=f" step {self.table.steps[place[1]]:,} ", anchor=anchor, fill=self.theme.colour("on_tip"),
            font=self.theme.font("small"), tags="step",
        )  # fmt: skip
        plate = self.canvas.create_rectangle(self.canvas.bbox(text), fill=self.theme.colour("tip"), width=0)
        self.canvas.tag_raise(text, plate)

    def _press(self, event: tk.Event[Any]) -> None:
        self._drag_start = (event.x, event.y, *self._offset)
        if self.compared is not None and not self.is_original:
            self._drag(event)

    def _drag(self, event: tk.Event[Any]) -> None:
        if self._drag_start is None or not self.images:
            return
        if self.compared is not None:
            self._set_wipe(self.wipe.at(event.x, self.image_left, self.images[0].width))
        elif self.is_original:
            x, y, left, top = self._drag_start
            self._offset = (left + event.x - x, top + event.y - y)
            self._context.pump.redraw_soon((self, "draw"), self._draw)

    def _set_wipe(self, wipe: Wipe) -> None:
        if wipe != self.wipe and self.compared is not None:
            self.wipe = wipe
            self._context.pump.redraw_soon((self, "draw"), self._draw)


def _load_images(paths: list[Path], box: tuple[int, int] | None) -> tuple[PIL.Image.Image, ...]:
    """Return images in their original size, or fitted into a box. Raises OSError."""
    return tuple(load_whole(path) if box is None else load_fitted(path, *box, enlarge="pixels") for path in paths)
