"""A sample, large, with its settings: copy them, use them again, find the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from trainer.idle_sampling.image_files import parameters_text, read_settings
from ui.forms.context import Context
from ui.widgets.controls import Button
from ui.widgets.image_grid import Tile
from ui.widgets.image_viewer import ImageViewer
from ui.widgets.panel import Panel
from ui.widgets.theme import GAP


class IdleSampleViewer(ImageViewer):
    """The samples of the Generate page; `use(path)` takes the settings of one."""

    def __init__(self, context: Context, tiles: Sequence[Tile], index: int, use: Callable[[Path], object]) -> None:
        self._context = context
        super().__init__(context.root, context.theme, context.pump, tiles, index, "Samples")
        self._use = use

    def copy_settings(self) -> None:
        """Put the settings of the image on the clipboard, in the form that other programs read."""
        settings = read_settings(self.tiles[self.index].path)
        self.clipboard_clear()
        self.clipboard_append(parameters_text(settings) if settings else self.tiles[self.index].caption)
        self._context.notify("The settings are on the clipboard.")

    def use_settings(self) -> None:
        """Take the settings of the image into the page."""
        self._use(self.tiles[self.index].path)

    def _add_steps(self, footer: Panel) -> None:
        super()._add_steps(footer)
        row = Panel(footer, self.theme)
        row.pack(fill="x", pady=(self.theme.px(8), 0))
        Button(row, self.theme, "Copy settings", self.copy_settings).pack(side="left", padx=(0, GAP))
        Button(row, self.theme, "Use settings", self.use_settings).pack(side="left", padx=(0, GAP))
        Button(row, self.theme, "Show in folder", self._open_folder).pack(side="left")

    def _open_folder(self) -> None:
        self._context.interaction.open_path(self.tiles[self.index].path.parent)
