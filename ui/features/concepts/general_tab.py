"""The General tab: where the images and captions come from, the images themselves, and the skipped files."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, overload

from PIL import Image

from modules.config.usage import reads_references
from modules.data.captions.drawing import cached_texts
from modules.data.captions.operations import ORDER, CaptionRules
from modules.data.captions.rules import caption_rules
from modules.data.companions import find_references
from modules.data.concept import Concept
from modules.data.scan import Scan
from modules.data.source_image import SourceImage
from modules.system.paths import from_root
from modules.system.problem import count
from trainer.run_folder.image_report import VERDICTS
from ui.features.concepts.concept_images import (
    ORDERS,
    VIEW,
    ConceptLosses,
    describe_loss,
    find_losses,
    is_excluded,
    set_excluded,
)
from ui.features.concepts.model import CAPTIONS_LABEL
from ui.features.concepts.window import Editing
from ui.loop.background import Job, Report, cancel
from ui.widgets.card import Card
from ui.widgets.controls import Button, Choice
from ui.widgets.image_grid import ImageGrid, Tile
from ui.widgets.image_viewer import ImageViewer
from ui.widgets.menu import make_menu
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.theme import PAD
from ui.widgets.thumbnails import with_insets
from ui.widgets.variables import TextVar, keep

_MAX_SKIPPED_LINES = 6
_MAX_PROMPTS = 20
_REFERENCE_SHARE = 0.42  # of the side of a tile


class GeneralTab:
    """The images of the concept in a grid next to its form."""

    def __init__(self, frame: Panel, editing: Editing) -> None:
        self.frame = frame
        self._editing = editing
        self._content: tuple[object, ...] = ()
        self._images: Sequence[SourceImage] = ()  # in the order of the grid
        self._losses: ConceptLosses | None = None
        self._looked_for: Scan | None = None  # the scan whose losses were looked for
        self._looking: Job | None = None
        self._viewer: ImageViewer | None = None
        self._viewed = ""  # the folder of its images
        self._unwatch = editing.context.form.changed.subscribe(self._close_foreign_viewer)
        self._edited: Concept | None = None  # the concept, if its images have reference images by their names
        self._without: frozenset[str] | None = None  # the images without one, once they are known
        self._searched: tuple[Scan, Concept] | None = None  # in which they were looked for
        self._searching: Job | None = None
        context, pad = editing.context, editing.context.theme.px(PAD)
        card = Card(frame, context.theme, "Images")
        tk.Grid.grid_configure(card, row=0, column=1, sticky="nsew", padx=(0, pad), pady=(pad, 0))
        self.summary = WrappedText(card.body, context.theme, colour="muted", on="card")
        self.summary.pack(fill="x", padx=(pad - 4, 0))
        self._add_order(card.body, pad)
        self.skipped = WrappedText(card.body, context.theme, role="small", colour="warning", on="card")
        self.skipped.pack(side="bottom", fill="x", padx=(pad - 4, 0))
        button = Button(card.body, context.theme, CAPTIONS_LABEL, self._edit_captions, on="card")
        button.pack(side="bottom", anchor="e", pady=(0, pad // 4))
        self.grid_view = ImageGrid(
            card.body, context.theme, context.pump, empty_text="No images.", on_open=self.open_image,
            on_menu=self._open_menu, load=self._load,
        )  # fmt: skip
        self.grid_view.pack(fill="both", expand=True, padx=(pad - 4, 0), pady=pad // 2)
        self.prompts = Text(card.body, context.theme, on="card", wrap_px=440)  # in place of the images

    def follow(self) -> None:
        """Show the images of the current folder."""
        concept = self._editing.concept
        match self._editing.scan:
            case Scan() as scan:
                self._look_for_losses(scan)
                self._look_for_references(scan)
                if self._looking is None or self.order.get() != "loss":
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
        """Close the large image, which excludes images of this concept, and cancel the searches; the grid cancels its
        work itself.
        """
        self._unwatch()
        self._close_viewer()
        cancel(self._looking, self._searching)

    def open_image(self, index: int) -> None:
        """Show an image large, in place of the last one."""
        self._close_viewer()
        if not self._editing.is_there:
            return
        self._viewed = self._editing.concept.path
        context, images = self._editing.context, self._images
        tiles = LazyTiles(images, lambda image: Tile(image.path, partial(self._name_and_caption, image)))
        actions = lambda number: self._actions(images[number])  # noqa: E731
        self._viewer = ImageViewer(context.root, context.theme, context.pump, tiles, index, actions=actions)

    def _close_viewer(self) -> None:
        if self._viewer is not None:
            self._viewer.close()
            self._viewer = None

    def _close_foreign_viewer(self) -> None:
        """Close the large image at once, if the config has another concept at this place: Exclude would be for that."""
        editing = self._editing
        if self._viewer is not None and (not editing.is_there or editing.concept.path != self._viewed):
            self._close_viewer()

    def _actions(self, image: SourceImage) -> tuple[tuple[str, Callable[[], object]], ...]:
        """Return the commands for an image, by label."""
        editing = self._editing
        is_out = is_excluded(editing.concept, image)
        exclude = partial(set_excluded, editing.context.form, editing.path, image, to=not is_out)
        return (
            (CAPTIONS_LABEL, partial(self._edit_captions, image.path)),
            ("Use again" if is_out else "Exclude", exclude),
        )

    def _open_menu(self, index: int, event: tk.Event[Any]) -> None:
        if not self._editing.is_there:
            return
        menu = make_menu(self.grid_view, self._editing.context.theme)
        for label, command in self._actions(self._images[index]):
            menu.add_command(label=label, command=command)
        menu.tk_popup(event.x_root, event.y_root)

    def _add_order(self, master: Panel, pad: int) -> None:
        """Add the choice of the order, which is shown where losses were measured."""
        context = self._editing.context
        self.order = TextVar(master=master, value="name")
        keep(self.order, context.view_state.of(VIEW, dict[str, str]), "order")
        self.order.trace_add("write", lambda *_: context.pump.redraw_soon((self, "order"), self.follow))
        self.order_row = Panel(master, context.theme, "card")
        Choice(self.order_row, context.theme, self.order, dict(ORDERS), width=110).pack(side="right")
        self.losses = WrappedText(self.order_row, context.theme, role="small", colour="muted", on="card")
        self.losses.pack(side="left", fill="x", expand=True)
        self._order_pack: dict[str, Any] = {
            "fill": "x",
            "padx": (pad - 4, 0),
            "pady": (pad // 4, 0),
            "after": self.summary,
        }

    def _look_for_losses(self, scan: Scan) -> None:
        """Look for the losses of the images in the background; afterwards the grid is drawn with them."""
        concept, context = self._editing.concept, self._editing.context
        if scan is self._looked_for or not concept.has_images:
            return
        cancel(self._looking)
        self._looked_for = scan
        workspace = from_root(context.form.value("general.workspace_dir"))
        work = partial(find_losses, workspace, concept.kind, (*scan.images, *scan.excluded))

        def keep_losses(losses: ConceptLosses | None) -> None:
            self._looking, self._losses = None, losses
            if self.frame.winfo_exists():
                self.follow()

        self._looking = context.pump.background.run(work, keep_losses)

    def _look_for_references(self, scan: Scan) -> None:
        """Look for images without a reference image in the background; afterwards they are marked."""
        concept, form = self._editing.concept, self._editing.context.form
        has_columns = bool(concept.image.conditioning_columns.strip())  # which name files of any name
        edited = concept if reads_references(form.config) and concept.has_images and not has_columns else None
        if (edited and edited.image) != (self._edited and self._edited.image):
            self.grid_view.photos.close()  # they show other reference images
        self._edited, known = edited, self._searched
        if edited is None:
            self._without = self._searched = None
            return
        if known is not None and known[0] is scan and (known[1].path, known[1].image) == (edited.path, edited.image):
            return
        cancel(self._searching)
        self._searched, self._without = (scan, edited), None
        self._searching = self._editing.context.pump.background.run_reporting(
            partial(_without_references, edited, scan.images), self._keep_references
        )

    def _keep_references(self, without: frozenset[str]) -> None:
        self._without = without
        if self.frame.winfo_exists():
            self.follow()

    def _name_and_caption(self, image: SourceImage) -> str:
        form, concept = self._editing.context.form, self._editing.concept
        rules = caption_rules(concept.text, seed=concept.seed)
        loss = self._losses.of(image) if self._losses is not None else None
        name = f"{image.path.name}, {describe_loss(loss)}" if loss is not None else image.path.name
        return f"{name}\n{_caption_text(image, rules, run_seed=form.value('general.seed'))}"

    def _edit_captions(self, image: Path | None = None) -> None:
        editing = self._editing
        editing.context.links.edit_captions(editing.number, image)

    def _show(self, scan: Scan) -> None:
        concept, form = self._editing.concept, self._editing.context.form
        run_seed = form.value("general.seed")
        losses = self._losses  # of the last scan, until others are found
        is_by_loss = losses is not None and self.order.get() == "loss"
        without, edited = self._without or frozenset(), self._edited and self._edited.image
        content = (
            scan, concept.text, concept.seed, concept.kind, run_seed, id(losses), is_by_loss, edited, self._without
        )  # fmt: skip
        if self._content and content[0] is self._content[0] and content[1:] == self._content[1:]:
            return
        self._content = content
        rules = caption_rules(concept.text, seed=concept.seed)  # with one variation of each caption
        self.summary.set_text(self._summary(scan, rules))
        if concept.has_images:
            self._images = losses.images if losses is not None and is_by_loss else (*scan.images, *scan.excluded)
            excluded = {image.path_text for image in scan.excluded}
            caption = partial(_caption_text, rules=rules, run_seed=run_seed)
            make = partial(
                _tile, caption=caption, excluded=excluded, losses=losses, shows_loss=is_by_loss, without=without
            )
            self._show_order(losses)
            self.grid_view.show(LazyTiles(self._images, make))
            self._swap(self.prompts, self.grid_view)
        else:
            self._show_prompts(scan.images, rules, run_seed=run_seed)
        lines = [f"Skipped: {s.path.name}: {s.reason}" for s in scan.skipped[:_MAX_SKIPPED_LINES]]
        more = len(scan.skipped) - _MAX_SKIPPED_LINES
        self.skipped.set_text("\n".join([*lines, *([f"and {more:,} more"] if more > 0 else [])]))

    def _show_order(self, losses: ConceptLosses | None) -> None:
        self.losses.set_text(losses.summary if losses is not None else "")
        if losses is None:
            self.order_row.pack_forget()
        elif not self.order_row.winfo_manager():
            self.order_row.pack(**self._order_pack)

    def _summary(self, scan: Scan, rules: CaptionRules) -> str:
        has_images = self._editing.concept.has_images
        parts = [count(len(scan.images), "image" if has_images else "prompt")]
        if scan.excluded:
            parts.append(f"{len(scan.excluded):,} excluded")
        if self._without is not None:
            missing = f"{len(self._without):,} without a reference image"
            parts.append(missing if self._without else "with their reference images in the corner")
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
        """Return an image with its reference images in the corner."""
        image = self._editing.thumbnails.fit(path, side_px, side_px, enlarge="smooth")
        if (concept := self._edited) is None:
            return image
        small_px = round(side_px * _REFERENCE_SHARE)
        references = [self._editing.thumbnails.fit(p, small_px, small_px) for p in _references(concept, path)]
        return with_insets(image, references, border_px=max(1, side_px // 80))


def _references(concept: Concept, image: Path) -> tuple[Path, ...]:
    folders = concept.image.conditioning_folders
    return find_references(image, folder=from_root(concept.path), inputs_folders=folders)


def _without_references(concept: Concept, images: Sequence[SourceImage], report: Report) -> frozenset[str]:
    """Return the paths of the images without a reference image. `report` is called for each and may raise to stop."""
    without = set[str]()
    for number, image in enumerate(images):
        report("", number, len(images))
        if not _references(concept, image.path):
            without.add(image.path_text)
    return frozenset(without)


def _caption_text(image: SourceImage, rules: CaptionRules, *, run_seed: int) -> str:
    """Return the captions of an image as they are trained, in their first variation."""
    texts = cached_texts(image.captions, rules, name=image.path.name, run_seed=run_seed)
    return " | ".join(filter(None, texts)) or "(no caption)"


_MAX_CACHED = 1000


def _tile(
    image: SourceImage,
    *,
    caption: Callable[[SourceImage], str],
    excluded: Collection[str],
    losses: ConceptLosses | None,
    shows_loss: bool,
    without: Collection[str],
) -> Tile:
    """Return the tile of an image; it is marked if it is excluded, its loss stands out, it is a near duplicate or it is
    among those `without` a reference image.
    """
    loss = losses.of(image) if losses is not None else None
    verdict = loss.verdict if loss is not None else ""
    badge, ring = VERDICTS.get(verdict, ""), ("info" if verdict == "low" else "warning") if verdict else ""
    if loss is not None and loss.same_as and not verdict:
        badge, ring = "near duplicate", "warning"
    if image.path_text in without:
        badge, ring = "no reference", "warning"
    if image.path_text in excluded:
        badge, ring = "excluded", "muted"
    if loss is not None and shows_loss:
        figure = describe_loss(loss)
        return Tile(image.path, lambda: f"{figure} · {caption(image)}", badge, ring)
    return Tile(image.path, partial(caption, image), badge, ring)


class LazyTiles(Sequence[Tile]):
    """A tile for each image, made when it is first shown."""

    def __init__(self, images: Sequence[SourceImage], make: Callable[[SourceImage], Tile]) -> None:
        self._images = images
        self._make = make
        self._tile = lru_cache(_MAX_CACHED)(lambda index: self._make(self._images[index]))

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
