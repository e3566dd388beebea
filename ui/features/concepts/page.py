"""The Concepts page: a card for each folder of images."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from modules.data.concept import Concept
from modules.settings.field import records_of
from modules.system.paths import thumbnails_dir
from ui.features.concepts.bars import FilterBar, ScanBar, UndoBar, concepts_menu
from ui.features.concepts.model import CAPTIONS_LABEL, PATH, ConceptsModel
from ui.forms.context import Context
from ui.forms.page import PageFrame
from ui.forms.setting_pages import PageSpec
from ui.loop.interaction import Failure
from ui.widgets.card_grid import CardGrid
from ui.widgets.controls import Button
from ui.widgets.panel import Flow, Panel, Text
from ui.widgets.theme import GAP, PAD
from ui.widgets.thumbnails import ThumbnailCache, collage
from ui.widgets.window import accept_paths

if TYPE_CHECKING:
    from ui.features.concepts.window import ConceptEditor

_MORE = "Drop more folders, images or archives here."
_FEW = 0.6  # of the height, up to which cards leave room for that hint


class ConceptsPage:
    """A grid of concepts, with an editor window for each."""

    def __init__(self, master: tk.Misc, context: Context, spec: PageSpec) -> None:
        self.frame = PageFrame(master, context, spec)
        self.kinds = _kinds()
        self.model = ConceptsModel(context.form, context.pump, self.kinds)
        self.thumbnails = ThumbnailCache(thumbnails_dir())
        self.editor: ConceptEditor | None = None
        self.buttons: dict[str, Button] = {}
        self._context = context
        self._summary = Text(self.frame.buttons, context.theme, colour="muted")
        self._summary.pack(side="right", padx=(context.theme.px(GAP), 0))
        self._add_body()
        accept_paths(context.root, self.frame, self._add_dropped)
        context.captions_changed.subscribe(self.model.scan_again)
        self.model.changed.subscribe(self._show)
        self.model.added.subscribe(self.select)
        self.model.filter_cleared.subscribe(self.filter_bar.clear)
        progressed, bar = self.model.scans.progressed, self.scan_bar
        progressed.subscribe(lambda: context.pump.redraw_soon(bar, bar.show_progress))
        self.model.follow()

    def on_show(self) -> None:
        """Look at the folders again: images may have been added or removed."""
        self.model.scan_again()

    def show_field(self, path: str) -> bool:
        """Select the concept at a path; for a field of it, open its editor at the field."""
        place = self.model.locate(path)
        if place is None:
            return False
        index, has_field = place
        if index is not None:
            self.select([index])
        self.grid.canvas.focus_set()
        return self.edit(index).show_field(path) if index is not None and has_field else True

    # -- commands

    @property
    def selected_indices(self) -> list[int]:
        """The indices of the selected concepts."""
        return self.model.indices_of(sorted(self.grid.selection))

    def select(self, indices: Sequence[int]) -> None:
        """Select concepts; filters that hide one of them are cleared."""
        self.grid.select(self.model.reveal(indices))

    def ask_folders(self) -> None:
        """Ask for folders and add a concept for each."""
        folders = self._context.interaction.ask_folders("Add folders of images", self.model.folder_to_start)
        self.model.add_folders(folders)

    def ask_file(self) -> None:
        """Ask for a file that is a concept: what the method learns from decides which."""
        path = self._context.interaction.ask_file("Add a file", self.model.folder_to_start, self.model.file_kinds)
        if path is not None:
            self.model.add_folders((path,))

    def edit(self, index: int) -> ConceptEditor:
        """Open the editor of a concept."""
        from ui.features.concepts.window import ConceptEditor  # it needs NumPy, which the page is drawn without

        self._close_editor()
        self.editor = ConceptEditor(self._context, self.model.scans, self.thumbnails, f"{PATH}.{index}", self.edit)
        return self.editor

    def show_losses(self, images: Sequence[Path]) -> None:
        """Open the editor of the concept that has the first of some images, sorted by loss; without any, the first."""
        index = self.model.index_with(images[0] if images else None)
        if index is None:
            failure = Failure(
                "The images are not in a concept",
                f"No concept of the config contains {images[0] if images else 'images'}.",
                "Load the config of the run, or add the folder as a concept.",
            )
            self._context.interaction.show_failure(failure)
            return
        from ui.features.concepts.concept_images import sort_by_loss  # it needs NumPy

        sort_by_loss(self._context)
        self.select([index])
        self.edit(index).show("General")

    def edit_selected(self) -> None:
        """Open the editor of the first selected concept."""
        if self.selected_indices:
            self.edit(self.selected_indices[0])

    def clone_selected(self) -> None:
        """Clone each selected concept, and select the clones."""
        self._change(self.selected_indices, self.model.clone)

    def remove(self, indices: Sequence[int]) -> None:
        """Remove concepts and offer to undo it. Their files stay."""
        if indices:
            self._close_editor()
            removal = self.model.remove(indices)
            self.undo_bar.offer(f"Removed {removal} from the config; no file was deleted.")
            self.model.refresh()
            self.grid.select([max(0, min(self.grid.current, len(self.model.visible) - 1))])

    def move_to_card(self, indices: Sequence[int], before: int) -> None:
        """Move concepts before a card, or behind the last one."""
        self._change(indices, lambda moved: self.model.move_to_card(moved, before))

    def menu(self) -> tk.Menu:
        """Return the menu of the selected cards."""
        selected, model = self.selected_indices, self.model
        commands: dict[str, Callable[[], object]] = {"Edit…": self.edit_selected}
        if selected:
            commands[CAPTIONS_LABEL] = partial(self._context.links.edit_captions, selected[0], None)
        commands |= {
            "Open folder": self._open_folder,
            "Clone": self.clone_selected,
            "Enable": partial(model.toggle, selected, to=True),
            "Disable": partial(model.toggle, selected, to=False),
            "Remove": partial(self.remove, selected),
        }
        return concepts_menu(self.frame, self._context.theme, commands)

    def enable_buttons(self) -> None:
        """Enable the buttons that need a selection."""
        for name in ("edit", "clone", "toggle", "remove", "earlier", "later"):
            self.buttons[name].set_enabled(bool(self.grid.selection))

    def _step(self, by: int) -> None:
        self._change(self.selected_indices, lambda chosen: self.model.step(chosen, by))

    def _change(self, indices: Sequence[int], change: Callable[[Sequence[int]], Sequence[int]]) -> None:
        """Change the order or the number of concepts, whose editor closes, and select the result."""
        if indices:
            self._close_editor()
            self.select(change(indices))

    # -- building

    def _add_body(self) -> None:
        context, px = self._context, self._context.theme.px
        body = Panel(self.frame, context.theme)
        body.grid(row=1, column=0, sticky="nsew", padx=(px(PAD + 4), px(4)))
        body.columnconfigure(0, weight=1)
        body.rowconfigure(2, weight=1)
        toolbar = Flow(body, context.theme, gap_px=GAP, on="window")
        toolbar.grid(row=0, column=0, sticky="ew", pady=(0, px(GAP)))
        for name, label, command, tip in self._commands():
            self.buttons[name] = context.buttons.add(toolbar, label, command, tip)
        self.filter_bar = FilterBar(body, context, self.kinds, self._filter_changed, self.model.toggle_visible)
        self.filter_bar.grid(row=1, column=0, sticky="ew", pady=(0, px(12)))
        self.grid = CardGrid(body, context.theme, context.pump, _Handler(self, context), self._load)
        self.grid.grid(row=2, column=0, sticky="nsew")
        self._empty = Text(self.grid.canvas, context.theme, colour="faint", justify="center", anchor="center")
        self.grid.canvas.bind(
            "<Configure>", lambda _e: context.pump.redraw_soon((self, "hint"), self._show_hint), add="+"
        )
        self.undo_bar = UndoBar(body, context, PATH)
        self.undo_bar.grid(row=3, column=0, sticky="ew", pady=(px(GAP), px(GAP)), padx=(0, px(PAD)))
        self.undo_bar.grid_remove()
        self.scan_bar = ScanBar(body, context, self.model.scans, self.model.scan_again)
        self.scan_bar.grid(row=4, column=0, sticky="ew", pady=(px(GAP), px(GAP)), padx=(0, px(PAD)))
        self.scan_bar.grid_remove()
        self.model.use_filter(self.filter_bar.filter)
        self.enable_buttons()

    def _commands(self) -> tuple[tuple[str, str, Callable[[], object], str], ...]:
        return (
            ("add", "Add folders…", self.ask_folders, "Choose one or more folders; or drop them on the page"),
            ("file", "Add file…", self.ask_file, "Choose an archive of images, or a file of prompts or pairs"),
            ("edit", "Edit…", self.edit_selected, "Open the editor (Return, double click)"),
            ("clone", "Clone", self.clone_selected, "Copy the selected concepts, with another augmentation seed"),
            ("toggle", "On / off", lambda: self.model.toggle(self.selected_indices), "Enable or disable (Space)"),
            ("remove", "Remove", lambda: self.remove(self.selected_indices), "Remove from the config (Delete)"),
            ("earlier", "←", lambda: self._step(-1), "Move before the one before (Alt+Left, or drag)"),
            ("later", "→", lambda: self._step(1), "Move behind the next one (Alt+Right, or drag)"),
        )

    # -- following the model

    def _show(self) -> None:
        model = self.model
        self.grid.show(model.grid_cards)
        self.buttons["add"].restyle("plain" if model.cards else "primary")
        if model.cards:
            self.filter_bar.grid()
        else:
            self.filter_bar.grid_remove()
        self.filter_bar.show_count(len(model.visible), len(model.cards), model.num_disabled)
        self._summary.set_text(model.summary)
        self._show_hint()
        model.prefer(self.grid.in_sight)

    def _filter_changed(self) -> None:
        if self.model.use_filter(self.filter_bar.filter):
            self.grid.select((), is_seen=False)

    def _show_hint(self) -> None:
        """Show how to add concepts if there are none, or below if there are only a few."""
        if note := self.model.empty_note:
            self._empty.set_text(note)
            self._empty.place(relx=0.5, rely=0.4, anchor="center")
        elif 0 < self.grid.layout().height < _FEW * self.grid.canvas.winfo_height():
            self._empty.set_text(_MORE)
            self._empty.place(relx=0.5, rely=0.96, anchor="s")
        else:
            self._empty.place_forget()

    def _load(self, paths: tuple[Path, ...], size: int) -> Image.Image:
        """Return the image of a card; on a background thread."""
        width, height = size >> 16, size & 0xFFFF
        colour = self._context.theme.colour("card")
        return collage(paths, width, height, gap_colour=colour, cache=self.thumbnails)

    def _open_folder(self) -> None:
        for index in self.selected_indices[:1]:
            self._context.interaction.open_path(self.model.folder_of(index))

    def _add_dropped(self, paths: Sequence[Path]) -> None:
        """Load a dropped config, as everywhere in the window; anything else is a concept."""
        if not self._context.documents.open_dropped(paths):
            self.model.add_folders(paths)

    def _close_editor(self) -> None:
        if self.editor is not None and self.editor.winfo_exists():
            self.editor.close()
        self.editor = None


class _Handler:
    """The commands that the grid calls with the numbers of its cards."""

    def __init__(self, page: ConceptsPage, context: Context) -> None:
        self._page, self._context = page, context

    def open_card(self, number: int) -> None:
        """Open the editor of a card's concept."""
        self._page.edit(self._page.model.visible[number].index)

    def toggle(self, numbers: Sequence[int]) -> None:
        """Enable or disable the concepts of cards."""
        self._page.model.toggle(self._page.model.indices_of(numbers))

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove the concepts of cards."""
        self._page.remove(self._page.model.indices_of(numbers))

    def move(self, numbers: Sequence[int], before: int) -> None:
        """Move the concepts of cards before another card."""
        self._page.move_to_card(self._page.model.indices_of(numbers), before)

    def selected(self) -> None:
        """Enable the buttons that need a selection."""
        self._page.enable_buttons()

    def pointed_at(self, number: int | None, event: tk.Event[Any]) -> None:
        """Show the whole text of a card as a tooltip."""
        edges = self._page.grid.edges_of(number) if number is not None else None
        self._context.tips.point_at(event, lambda: self._page.model.tip(number), edges)

    def open_menu(self, _number: int, event: tk.Event[Any]) -> None:
        """Open the menu of the selected cards."""
        self._page.menu().tk_popup(event.x_root, event.y_root)


def _kinds() -> dict[str, str]:
    record = next(r for r in records_of(Concept) if r.path == "kind")
    return dict(record.choices)
