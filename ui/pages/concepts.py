"""The Concepts page: the folders of images and their contents."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image, ImageTk

from modules.data.archives import ARCHIVE_SUFFIXES
from modules.data.concept import Concept
from modules.data.scan import Scan
from modules.system.paths import PROGRAM_ROOT, from_root
from modules.system.problem import count
from ui.context import Context
from ui.documents import as_config_path
from ui.editors.concept import ConceptEditor
from ui.forms import items
from ui.pages.catalogue import PageSpec
from ui.pages.list_card import ENABLED_COLUMN, OFF, ON, ListCard
from ui.pages.page import PageFrame
from ui.scanning import Scans
from ui.theme import PAD
from ui.thumbnails import load_square
from ui.widgets.dropping import accept_paths
from ui.widgets.panel import Text
from ui.widgets.table import Column

PATH = "concepts"
_THUMBNAIL_PX = 52
_COLUMNS = (
    Column("#0", "Name", 250),
    Column(ENABLED_COLUMN, "On", 44, "center"),
    Column("kind", "Type", 140),
    Column("images", "Images", 110),
    Column("path", "Folder", 260, is_stretched=True),
)
_NOTHING_YET = "Add the folders that contain your images.\nYou can choose several at once, or drop them here."


class ConceptsPage:
    """A table of the concepts, with an editor window for each."""

    def __init__(self, master: tk.Misc, context: Context, spec: PageSpec) -> None:
        self.frame = PageFrame(master, context, spec)
        self.scans = Scans(context.pump.background)
        self.editor: ConceptEditor | None = None
        self._context = context
        self._photos: dict[Path, ImageTk.PhotoImage | None] = {}
        side_px = context.theme.px(_THUMBNAIL_PX)
        self._blank = tk.PhotoImage(master=self.frame, width=side_px, height=side_px)
        self._summary = Text(self.frame.buttons, context.theme, colour="muted")
        self._summary.pack(side="right")
        self.list = ListCard(
            self.frame,
            context,
            PATH,
            _COLUMNS,
            title="",
            row_of=self._row_of,
            edit=self.edit,
            before_change=self._close_editor,
            table_style="Images.Treeview",
        )
        px = context.theme.px
        tk.Grid.grid_configure(self.list.card, row=1, column=0, sticky="nsew", padx=px(PAD + 4), pady=(0, px(PAD)))
        self.list.add_button("add", "Add folders…", self.ask_folders, "Choose one or more folders")
        self.list.add_usual_buttons()
        self._empty = Text(
            self.list.table, context.theme, _NOTHING_YET, colour="faint", on="card", justify="center", anchor="center"
        )
        accept_paths(context.root, self.frame, self._dropped)
        context.form.watch(PATH, self._follow)
        self._follow()

    def shown(self) -> None:
        """Scan the folders again: images may have been added or removed."""
        self.scans.forget()
        self._follow()

    def hidden(self) -> None:
        """Do nothing: the page has no background work."""

    def show_field(self, path: str) -> bool:
        """Select the concept at a path; for a field of it, open its editor at the field."""
        return self.list.show_field(path, lambda index: self.edit(index).show_field(path))

    def ask_folders(self) -> None:
        """Ask for folders and add a concept for each."""
        present = [from_root(c.path).parent for c in self._concepts() if c.path]
        start = next((p for p in reversed(present) if p.is_dir()), PROGRAM_ROOT)
        self.add_folders(self._context.interaction.ask_folders("Add folders of images", start))

    def add_folders(self, folders: Iterable[Path]) -> None:
        """Add a concept for each folder and archive; another dropped file stands for its folder."""
        is_source = [(p, p.is_dir() or p.suffix.lower() in ARCHIVE_SUFFIXES) for p in folders]
        paths = dict.fromkeys(p if is_own else p.parent for p, is_own in is_source)
        new = [Concept(path=as_config_path(p)) for p in paths]
        if new:
            self.list.add(new)

    def _dropped(self, paths: Sequence[Path]) -> None:
        """Load a dropped config, as everywhere in the window; anything else is a concept."""
        if not self._context.documents.open_dropped(paths):
            self.add_folders(paths)

    def edit(self, index: int) -> ConceptEditor:
        """Open the editor of a concept."""
        self._close_editor()
        self.editor = ConceptEditor(self._context, self.scans, f"{PATH}.{index}")
        return self.editor

    def _close_editor(self) -> None:
        if self.editor is not None and self.editor.winfo_exists():
            self.editor.close()
        self.editor = None

    def _concepts(self) -> tuple[Concept, ...]:
        concepts: tuple[Any, ...] = items.items_of(self._context.form, PATH)
        return concepts

    def _follow(self) -> None:
        """Show the concepts and scan the new ones."""
        self.list.refresh()
        concepts = self._concepts()
        if concepts:
            self._empty.place_forget()
        else:
            self._empty.place(relx=0.5, rely=0.45, anchor="center")
        self._summary.set_text(self._summed(concepts))
        for index, concept in enumerate(concepts):
            self.scans.want(concept, partial(self._scanned, concept))
            self._show_thumbnail(index, concept)

    def _scanned(self, concept: Concept) -> None:
        self._context.pump.redraw_soon(self, self._follow)

    def _show_thumbnail(self, index: int, concept: Concept) -> None:
        scan = self.scans.of(concept)
        if not isinstance(scan, Scan) or not scan.images or not concept.has_images:
            self.list.table.set_image(index, self._blank)
            return
        path = scan.images[0].path
        if path in self._photos:
            self.list.table.set_image(index, self._photos[path] or self._blank)
            return
        self._photos[path] = None
        side_px = self._context.theme.px(_THUMBNAIL_PX)
        self._context.pump.background.run(
            lambda: load_square(path, side_px), partial(self._thumbnail_loaded, path), lambda _error: None
        )

    def _thumbnail_loaded(self, path: Path, image: Image.Image) -> None:
        self._photos[path] = ImageTk.PhotoImage(image, master=self.frame)
        self._context.pump.redraw_soon(self, self._follow)

    def _row_of(self, index: int, concept: Concept) -> tuple[str, tuple[str, ...], str]:
        kinds = self._context.form.record(f"{PATH}.{index}.kind")
        kind = kinds.choices[concept.kind] if kinds else concept.kind
        words, tag = self._found_words(concept)
        name = concept.name or Path(concept.path).name or "no folder"
        tag = tag if concept.enabled else "faint"
        return f"  {name}", (ON if concept.enabled else OFF, kind, words, concept.path), tag

    def _found_words(self, concept: Concept) -> tuple[str, str]:
        """Return the text of a concept's image count, and the colour of its row."""
        match self.scans.of(concept):
            case Scan(images=images, skipped=skipped):
                extra = f" ({len(skipped)} skipped)" if skipped else ""
                return f"{len(images):,}{extra}", "" if images else "error"
            case None:
                return "…", ""
            case error:
                return str(error), "error"

    def _summed(self, concepts: tuple[Concept, ...]) -> str:
        scans = [(c, s) for c in concepts if c.enabled and isinstance(s := self.scans.of(c), Scan)]
        if not concepts:
            return ""
        num_images, num_prompts = (sum(len(s.images) for c, s in scans if c.has_images is i) for i in (True, False))
        prompts = f", {count(num_prompts, 'prompt')}" if num_prompts else ""
        return f"{count(len(concepts), 'concept')}, {count(num_images, 'image')}{prompts} in use"
