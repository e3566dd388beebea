"""The General tab: where the images and captions come from, the images themselves, and the skipped files."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import overload

from PIL import Image

from modules.data.captions.drawing import cached_texts
from modules.data.captions.operations import ORDER, CaptionRules
from modules.data.captions.rules import caption_rules
from modules.data.scan import Scan
from modules.data.source_image import SourceImage
from modules.system.problem import count
from ui.features.concepts.model import CAPTIONS_LABEL
from ui.features.concepts.window import Editing
from ui.widgets.card import Card
from ui.widgets.controls import Button
from ui.widgets.image_grid import ImageGrid, Tile
from ui.widgets.image_viewer import ImageViewer
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.theme import PAD

_MAX_SKIPPED_LINES = 6
_MAX_PROMPTS = 20


class GeneralTab:
    """The images of the concept in a grid next to its form."""

    def __init__(self, frame: Panel, editing: Editing) -> None:
        self.frame = frame
        self._editing = editing
        self._content: tuple[object, ...] = ()
        context, pad = editing.context, editing.context.theme.px(PAD)
        card = Card(frame, context.theme, "Images")
        tk.Grid.grid_configure(card, row=0, column=1, sticky="nsew", padx=(0, pad), pady=(pad, 0))
        self.summary = WrappedText(card.body, context.theme, colour="muted", on="card")
        self.summary.pack(fill="x", padx=(pad - 4, 0))
        self.skipped = WrappedText(card.body, context.theme, role="small", colour="warning", on="card")
        self.skipped.pack(side="bottom", fill="x", padx=(pad - 4, 0))
        button = Button(card.body, context.theme, CAPTIONS_LABEL, self._edit_captions, on="card")
        button.pack(side="bottom", anchor="e", pady=(0, pad // 4))
        self.grid_view = ImageGrid(
            card.body, context.theme, context.pump, empty_text="No images.", on_open=self.open_image, load=self._load
        )
        self.grid_view.pack(fill="both", expand=True, padx=(pad - 4, 0), pady=pad // 2)
        self.prompts = Text(card.body, context.theme, on="card", wrap_px=440)  # in place of the images

    def follow(self) -> None:
        """Show the images of the current folder."""
        concept = self._editing.concept
        match self._editing.scan:
            case Scan() as scan:
                self._show(scan)
            case None:
                self.summary.set_text("Scanning…")
            case reason:
                self._content = ()
                self.summary.set_text(f"{'Folder' if concept.has_images else 'File'} {reason}.")
                self.grid_view.show(())
                self.prompts.set_text("")
                self.skipped.set_text("")

    def close(self) -> None:
        """Do nothing: the grid cancels its work itself."""

    def open_image(self, index: int) -> None:
        """Show an image large."""
        scan = self._editing.scan
        if isinstance(scan, Scan):
            context = self._editing.context
            ImageViewer(
                context.root, context.theme, context.pump, LazyTiles(scan.images, self._name_and_caption), index
            )

    def _name_and_caption(self, image: SourceImage) -> str:
        form, concept = self._editing.context.form, self._editing.concept
        rules = caption_rules(concept.text, seed=concept.seed)
        return f"{image.path.name}\n{_caption_text(image, rules, run_seed=form.value('general.seed'))}"

    def _edit_captions(self) -> None:
        editing = self._editing
        editing.context.links.edit_captions(editing.number)

    def _show(self, scan: Scan) -> None:
        concept, form = self._editing.concept, self._editing.context.form
        run_seed = form.value("general.seed")
        content = (scan, concept.text, concept.seed, concept.kind, run_seed)
        if self._content and content[0] is self._content[0] and content[1:] == self._content[1:]:
            return
        self._content = content
        rules = caption_rules(concept.text, seed=concept.seed)  # with one variation of each caption
        self.summary.set_text(self._summary(scan, rules))
        if concept.has_images:
            show_caption = partial(_caption_text, rules=rules, run_seed=run_seed)
            self.grid_view.show(LazyTiles(scan.images, show_caption))
            self._swap(self.prompts, self.grid_view)
        else:
            self._show_prompts(scan.images, rules, run_seed=run_seed)
        lines = [f"Skipped: {s.path.name}: {s.reason}" for s in scan.skipped[:_MAX_SKIPPED_LINES]]
        more = len(scan.skipped) - _MAX_SKIPPED_LINES
        self.skipped.set_text("\n".join([*lines, *([f"and {more:,} more"] if more > 0 else [])]))

    def _summary(self, scan: Scan, rules: CaptionRules) -> str:
        has_images = self._editing.concept.has_images
        parts = [count(len(scan.images), "image" if has_images else "prompt")]
        if num_without := scan.num_without_caption:
            parts.append(f"{num_without:,} without a caption")
        if not rules.is_plain and scan.images:
            what = "captions" if has_images else "prompts"
            parts.append(f"with {what} as they are trained, after {', '.join(ORDER[:-1])}, {ORDER[-1]}")
        return ", ".join(parts)

    def _show_prompts(self, prompts: Sequence[SourceImage], rules: CaptionRules, *, run_seed: int) -> None:
        """Show prompts without images as text, in place of the images."""
        lines = [_caption_text(p, rules, run_seed=run_seed) for p in prompts[:_MAX_PROMPTS]]
        more = len(prompts) - _MAX_PROMPTS
        self.prompts.set_text("\n".join([*lines, *([f"and {more:,} more"] if more > 0 else [])]))
        self.grid_view.show(())
        self._swap(self.grid_view, self.prompts)

    def _swap(self, old: tk.Widget, new: tk.Widget) -> None:
        pad = self._editing.context.theme.px(PAD)
        old.pack_forget()
        new.pack(fill="both", expand=True, padx=(pad - 4, 0), pady=pad // 2)

    def _load(self, path: Path, side_px: int) -> Image.Image:
        return self._editing.thumbnails.fit(path, side_px, side_px, enlarge="smooth")


def _caption_text(image: SourceImage, rules: CaptionRules, *, run_seed: int) -> str:
    """Return the captions of an image as they are trained, in their first variation."""
    texts = cached_texts(image.captions, rules, name=image.path.name, run_seed=run_seed)
    return " | ".join(filter(None, texts)) or "(no caption)"


_MAX_CACHED = 1000


class LazyTiles(Sequence[Tile]):
    """A tile for each image, with its caption."""

    def __init__(self, images: Sequence[SourceImage], caption: Callable[[SourceImage], str]) -> None:
        self._images = images
        self._caption = caption
        self._tile = lru_cache(_MAX_CACHED)(self._make_tile)

    def __len__(self) -> int:
        return len(self._images)

    @overload
    def __getitem__(self, index: int) -> Tile: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tile]: ...
    def __getitem__(self, index: int | slice) -> Tile | Sequence[Tile]:
        if isinstance(index, slice):
            return [self._tile(n) for n in range(len(self))[index]]
        return self._tile(range(len(self))[index])

    def _make_tile(self, index: int) -> Tile:
        image = self._images[index]
        return Tile(image.path, partial(self._caption, image))
