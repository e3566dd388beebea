"""The cards of Home: the newest runs with their last samples, this computer, and the queue."""

from __future__ import annotations

import tkinter as tk
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ui.app.home_model import machine_rows, why_no_gpu
from ui.features.queue.model import QueueControl
from ui.forms.context import Context
from ui.widgets.card import Card
from ui.widgets.controls import Button
from ui.widgets.fitted_text import FittedText
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.theme import PAD

if TYPE_CHECKING:
    from PIL import ImageTk

    from trainer.preflight.machine import Machine
    from trainer.run_folder.records import RunRecord
    from ui.widgets.photos import Key, Photos

_TILE_SIDES_PX, _TILE_GAP_PX, _MAX_IN_LINE = (240, 208, 176, 152, 128), 14, 5
_NO_RUNS = "No runs yet. What you train is listed here, each run with its last sample."
_NO_QUEUE = "The queue is empty. It trains configs one after another, also overnight."
_MAX_QUEUED = 4
_LABEL_PX = 84


class RecentCard(Card):
    """The newest runs as tiles that open them in the list of runs."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(master, context.theme, "Recent runs")
        self.tiles: list[RunTile] = []
        self._context = context
        self._records: tuple[RunRecord, ...] = ()
        self._side, self._columns = context.theme.px(_TILE_SIDES_PX[-1]), 1
        self._photos: Photos | None = None
        px = context.theme.px
        self.empty = WrappedText(self.body, context.theme, _NO_RUNS, colour="muted", on="card")
        self._empty_place: dict[str, Any] = {"fill": "x", "padx": (px(12), 0), "pady": (0, px(6))}
        self.empty.pack(**self._empty_place)
        self.grid_box = Panel(self.body, context.theme, "card")

    def show(self, records: tuple[RunRecord, ...]) -> None:
        """Show other runs."""
        self._records = records
        if records:
            self._photos = self._photos or self._make_photos()
            self.empty.pack_forget()
            self.grid_box.pack(fill="x", padx=(self._context.theme.px(12), 0))
        else:
            self.grid_box.pack_forget()
            self.empty.pack(**self._empty_place)
        self._draw_tiles()

    def fit(self, width: int) -> None:
        """Choose the size of the tiles for a card of this width."""
        px = self._context.theme.px
        room, gap = width - px(2 * PAD + 12), px(_TILE_GAP_PX)
        fitting = [px(side) for side in _TILE_SIDES_PX if _MAX_IN_LINE * (px(side) + gap) - gap <= room]
        side = fitting[0] if fitting else px(_TILE_SIDES_PX[-1])
        columns = max(1, min(_MAX_IN_LINE, (room + gap) // (side + gap)))
        if (side, columns) != (self._side, self._columns):
            self._side, self._columns = side, columns
            self._draw_tiles()

    def _draw_tiles(self) -> None:
        for tile in self.tiles:
            tile.destroy()
        gap = self._context.theme.px(_TILE_GAP_PX)
        self.tiles = [RunTile(self.grid_box, self._context, record, self._side) for record in self._records]
        for number, tile in enumerate(self.tiles):
            row, column = divmod(number, self._columns)
            tile.grid(row=row, column=column, sticky="nw", padx=(0, gap), pady=(gap if row else 0, 0))
        self._show_photos()

    def _show_photos(self) -> None:
        for tile in self.tiles:
            if self._photos is not None and tile.image_key is not None:
                self._photos.load(tile.image_key)
                tile.show_photo(self._photos.get(tile.image_key))

    def _make_photos(self) -> Photos:
        from ui.widgets.photos import Photos
        from ui.widgets.thumbnails import load_covering

        load = lambda path, side_px: load_covering(path, side_px, side_px)  # noqa: E731
        return Photos(self, self._context.pump, self._show_photos, most=2 * _MAX_IN_LINE, load=load)


class RunTile(Panel):
    """A run: its last sample, name, ending and start. A click shows it in the list of runs."""

    def __init__(self, master: tk.Misc, context: Context, record: RunRecord, side_px: int) -> None:
        super().__init__(master, context.theme, "card", cursor="hand2", takefocus=True)
        self.image_key: Key | None = (Path(record.newest_sample), side_px) if record.newest_sample else None
        theme = context.theme
        frame = Panel(self, theme, "field", width=side_px, height=side_px)
        frame.pack_propagate(False)
        frame.pack()
        note = "" if self.image_key else "no samples"
        self._image = Text(frame, theme, note, colour="faint", on="field", anchor="center")
        self._image.pack(fill="both", expand=True)
        from ui.app.recent_runs import describe_run  # there are runs: the module is loaded

        title, ending, colour, started = describe_run(record)
        self._name = FittedText(self, theme, title, role="strong", on="card")
        lines = (self._name, FittedText(self, theme, ending, role="small", colour=colour, on="card"))
        for line in (*lines, FittedText(self, theme, started, role="caption", colour="muted", on="card")):
            line.pack(fill="x", pady=(theme.px(6) if line is self._name else 0, 0))
        show = partial(context.links.show_run, record.run_dir)
        for part in (self, *self.winfo_children(), self._image):
            part.bind("<Button-1>", lambda _e: show())
        for key in ("<Return>", "<space>"):
            self.bind(key, lambda _e: show())
        for sequences, token in ((("<Enter>", "<FocusIn>"), "accent"), (("<Leave>", "<FocusOut>"), "text")):
            for sequence in sequences:
                self.bind(sequence, partial(self._colour_name, token), add="+")
        context.tips.attach(self, lambda: f"{title}: {ending}\n{record.run_dir}")

    def _colour_name(self, token: str, _event: object) -> None:
        self._name.recolour(token)

    def show_photo(self, photo: ImageTk.PhotoImage | None) -> None:
        """Show the sample once it is loaded."""
        if photo is not None:
            self._image.configure(image=photo)


class MachineCard(Card):
    """This computer: its GPU or none, memory, and free disk."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(master, context.theme, "This computer")
        self.machine: Machine | None = None
        self._context = context
        self._content = Panel(self.body, context.theme, "card")
        self._content.pack(fill="x", padx=(context.theme.px(12), 0))
        self._note = WrappedText(self._content, context.theme, "Looking…", colour="muted", on="card")
        self._note.grid(row=9, column=0, columnspan=2, sticky="ew")
        self._content.columnconfigure(0, minsize=context.theme.px(_LABEL_PX))
        self._content.columnconfigure(1, weight=1)

    def find(self) -> None:
        """Read the hardware in the background, which runs a tool of the driver; the free memory changes."""
        self._context.pump.background.run(_find_machine, self._show)

    def _show(self, machine: Machine) -> None:
        if machine == self.machine or not self.winfo_exists():
            return
        self.machine = machine
        theme = self._context.theme
        for child in self._content.winfo_children():
            if child is not self._note:
                child.destroy()
        for row, (label, value) in enumerate(machine_rows(machine)):
            gap = (0, theme.px(4))
            Text(self._content, theme, label, colour="muted", on="card").grid(row=row, column=0, sticky="nw", pady=gap)
            text = WrappedText(self._content, theme, value, on="card")
            text.grid(row=row, column=1, sticky="new", pady=gap)
        self._note.set_text(reason := why_no_gpu(machine))
        if reason:
            self._note.grid()
        else:
            self._note.grid_remove()


def _find_machine() -> Machine:
    from trainer.preflight.machine import this_machine

    return this_machine()


class QueueCard(Card):
    """The open items of the queue, and a button that opens its page."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(master, context.theme, "Queue")
        self._context = context
        self._queue = context.models.of(QueueControl)
        px = context.theme.px
        self.text = WrappedText(self.body, context.theme, _NO_QUEUE, colour="muted", on="card")
        self.text.pack(fill="x", padx=(px(12), 0))
        self.button = Button(self.body, context.theme, "Open the queue", self._open, on="card")
        self.button.pack(anchor="w", padx=(px(12), 0), pady=(px(10), 0))
        self._queue.changed.subscribe(lambda: context.pump.redraw_soon(self, self.refresh))
        self.refresh()

    def refresh(self) -> None:
        """List what is trained and what waits."""
        items = [i for i in self._queue.queue.items if not i.has_ended]
        lines = [f"{item.name}: {item.state.label.lower()}" for item in items[:_MAX_QUEUED]]
        if len(items) > _MAX_QUEUED:
            lines.append(f"and {len(items) - _MAX_QUEUED} more")
        self.text.set_text(self._queue.problem or "\n".join(lines) or _NO_QUEUE)
        self.text.recolour("error" if self._queue.problem else "label" if lines else "muted")

    def _open(self) -> None:
        self._context.navigation.open("queue")
