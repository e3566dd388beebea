"""The editor of a concept: its fields, its images with captions, and the skipped files."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from functools import partial

from modules.data.captions.drawing import cached_texts
from modules.data.captions.operations import ORDER, CaptionRules
from modules.data.captions.rules import caption_rules
from modules.data.concept import Concept
from modules.data.scan import Scan, SourceImage
from modules.system.problem import count
from ui.context import Context
from ui.editors.images import ImageViewer
from ui.forms.layout import FormView
from ui.forms.records import item_groups
from ui.scanning import Scans
from ui.theme import GAP, PAD
from ui.widgets.card import Card
from ui.widgets.controls import Button
from ui.widgets.dialog import Window
from ui.widgets.image_grid import ImageGrid, Tile
from ui.widgets.panel import Panel, Text
from ui.widgets.scroll import ScrollFrame

_SIZE = (980, 640)
_FORM_WIDTH = 440
_MAX_SKIPPED_LINES = 6
_MAX_PROMPTS = 20


def _caption_text(image: SourceImage, rules: CaptionRules, *, run_seed: int) -> str:
    """Return the captions of an image as they are trained, in their first variation."""
    texts = cached_texts(image.captions, rules, name=image.path.name, run_seed=run_seed)
    return " | ".join(filter(None, texts)) or "(no caption)"


def _named_caption(tile: Tile) -> str:
    return f"{tile.path.name}\n{tile.caption}"


class ConceptEditor(Window):
    """Edits the concept at a path of the config. Edits apply at once and can be undone."""

    def __init__(self, context: Context, scans: Scans, path: str) -> None:
        super().__init__(context.root, context.theme, "Concept")
        self.path = path
        self._context = context
        self._scans = scans
        self._num_items = len(context.form.value(path.rpartition(".")[0]))
        px = context.theme.px
        self.columnconfigure(1, weight=1)
        self.rowconfigure(0, weight=1)
        scroll = ScrollFrame(self, context.theme)
        scroll.configure(width=px(_FORM_WIDTH))
        scroll.grid_propagate(False)
        scroll.grid(row=0, column=0, sticky="nsew", padx=(px(PAD), 0), pady=px(PAD))
        scroll.body.columnconfigure(0, weight=1)
        groups = item_groups(Concept, path, "Concept")
        self.form_view = FormView(scroll.body, context, lambda: groups, max_columns=1)
        self.form_view.grid(row=0, column=0, sticky="new")
        self.form_view.build()
        self._add_preview(px(PAD))
        self._unwatch = context.form.watch(path.rpartition(".")[0], self._follow)
        self._follow()
        self.appear(*_SIZE)

    def show_field(self, path: str) -> bool:
        """Show a field."""
        return self.form_view.reveal(path) is not None

    def destroy(self) -> None:
        """Also unsubscribe from the models."""
        self._unwatch()
        self._context.pump.forget(self)
        super().destroy()

    def _add_preview(self, pad: int) -> None:
        context = self._context
        card = Card(self, context.theme, "Images")
        tk.Grid.grid_configure(card, row=0, column=1, sticky="nsew", padx=(0, pad), pady=pad)
        self.summary = Text(card.body, context.theme, colour="muted", on="card", wrap_px=440)
        self.summary.pack(anchor="w", padx=(pad - 4, 0))
        footer = Panel(card.body, context.theme, "card")
        footer.pack(side="bottom", fill="x")
        self.skipped = Text(footer, context.theme, role="small", colour="warning", on="card", wrap_px=440)
        self.skipped.pack(side="left", anchor="w", padx=(pad - 4, 0))
        Button(footer, context.theme, "Close", self.close, on="card").pack(side="right", anchor="s")
        Button(footer, context.theme, "Captions and masks…", self._edit_captions, on="card").pack(
            side="right", anchor="s", padx=GAP
        )
        self.grid_view = ImageGrid(card.body, context.theme, context.pump, empty_text="No images.", on_open=self._open)
        self.grid_view.pack(fill="both", expand=True, padx=(pad - 4, 0), pady=pad // 2)
        self.prompts = Text(card.body, context.theme, on="card", wrap_px=440)  # in place of the images

    def _edit_captions(self) -> None:
        from ui.editors.captions.opening import open_caption_editor  # needs NumPy, which the window starts without

        open_caption_editor(self._context, int(self.path.rpartition(".")[2]), closed=self._scan_again)

    def _scan_again(self) -> None:
        """Scan the folder again after its captions were edited."""
        if self.winfo_exists():
            self._scans.forget()
            self._follow()

    def _follow(self) -> None:
        """Show the images of the current folder."""
        form = self._context.form
        if len(form.value(self.path.rpartition(".")[0])) != self._num_items:
            self._context.root.after_idle(self.close)
            return
        concept = form.value(self.path)
        self.title(f"Concept {concept.name or concept.path}")
        self._scans.want(concept, lambda: self._context.pump.redraw_soon(self, self._follow))
        match self._scans.of(concept):
            case Scan() as scan:
                self._show(scan)
            case None:
                self.summary.set_text("Scanning…")
            case reason:
                self.summary.set_text(f"{'Folder' if concept.has_images else 'File'} {reason}.")
                self.grid_view.show(())
                self.prompts.set_text("")
                self.skipped.set_text("")

    def _show(self, scan: Scan) -> None:
        concept: Concept = self._context.form.value(self.path)
        parts = [count(len(scan.images), "image" if concept.has_images else "prompt")]
        if scan.num_without_caption:
            parts.append(f"{scan.num_without_caption:,} without a caption")
        rules = caption_rules(concept.text, seed=concept.seed)  # with one variation of each caption
        if not rules.is_plain and scan.images:
            what = "captions" if concept.has_images else "prompts"
            parts.append(f"with {what} as they are trained, after {', '.join(ORDER[:-1])}, {ORDER[-1]}")
        self.summary.set_text(", ".join(parts))
        run_seed = self._context.form.value("general.seed")
        if concept.has_images:
            tiles = [Tile(p.path, partial(_caption_text, p, rules, run_seed=run_seed)) for p in scan.images]
            self.grid_view.show(tiles)
            self._swap(self.prompts, self.grid_view)
        else:
            self._show_prompts(scan.images, rules, run_seed=run_seed)
        lines = [f"Skipped: {s.path.name}: {s.reason}" for s in scan.skipped[:_MAX_SKIPPED_LINES]]
        more = len(scan.skipped) - _MAX_SKIPPED_LINES
        self.skipped.set_text("\n".join([*lines, *([f"and {more} more"] if more > 0 else [])]))

    def _show_prompts(self, prompts: Sequence[SourceImage], rules: CaptionRules, *, run_seed: int) -> None:
        """Show prompts without images as text, in place of the images."""
        shown = [_caption_text(p, rules, run_seed=run_seed) for p in prompts[:_MAX_PROMPTS]]
        more = len(prompts) - _MAX_PROMPTS
        self.prompts.set_text("\n".join([*shown, *([f"and {more:,} more"] if more > 0 else [])]))
        self.grid_view.show(())
        self._swap(self.grid_view, self.prompts)

    def _swap(self, hidden: tk.Widget, shown: tk.Widget) -> None:
        pad = self._context.theme.px(PAD)
        hidden.pack_forget()
        shown.pack(fill="both", expand=True, padx=(pad - 4, 0), pady=pad // 2)

    def _open(self, index: int) -> None:
        tiles = [Tile(t.path, partial(_named_caption, t)) for t in self.grid_view.tiles]
        ImageViewer(self._context, tiles, index)
