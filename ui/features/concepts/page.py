"""The Concepts page: a card for each folder of images."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from modules.data.concept import Concept
from modules.settings.field import records_of
from modules.system.paths import PROGRAM_ROOT, from_root, thumbnails_dir
from modules.system.problem import count
from ui.features.concepts.bars import FilterBar, ScanBar, UndoBar, concepts_menu
from ui.features.concepts.card_list import CardList
from ui.features.concepts.cards import ConceptCard, adding, clone
from ui.features.concepts.scanning import Scans
from ui.features.concepts.window import CAPTIONS_LABEL
from ui.forms import items
from ui.forms.context import Context
from ui.forms.page import PageFrame
from ui.forms.setting_pages import PageSpec
from ui.widgets.card_grid import CardGrid
from ui.widgets.controls import Button
from ui.widgets.dropping import accept_paths
from ui.widgets.panel import Panel, Text
from ui.widgets.theme import GAP, PAD
from ui.widgets.thumbnails import ThumbnailCache, collage

if TYPE_CHECKING:
    from ui.features.concepts.window import ConceptEditor

PATH = "concepts"
_NOTHING_YET = "Add the folders that contain your images.\nYou can choose several at once, or drop them here."
_MORE = "Drop more folders, images or archives here."
_FEW = 0.6  # of the height, up to which cards leave room for that hint
_NONE_FOUND = "No concept matches the search and the filters."
_MANY = 200  # new concepts
_REFRESH_SECONDS = 0.2  # while many folders are scanned


class ConceptsPage:
    """A grid of concepts, with an editor window for each."""

    def __init__(self, master: tk.Misc, context: Context, spec: PageSpec) -> None:
        self.frame = PageFrame(master, context, spec)
        self.scans = Scans(context.pump.background)
        self.thumbnails = ThumbnailCache(thumbnails_dir())
        self.editor: ConceptEditor | None = None
        self.list = CardList(self.scans, _kinds())
        self.buttons: dict[str, Button] = {}
        self._context = context
        self._summary = Text(self.frame.buttons, context.theme, colour="muted")
        self._summary.pack(side="right", padx=(context.theme.px(GAP), 0))
        self._add_body()
        accept_paths(context.root, self.frame, self._dropped)
        context.form.watch(PATH, self._follow)
        context.captions_changed.subscribe(self._scan_again)
        self.scans.progressed.subscribe(lambda: context.pump.redraw_soon(self.scan_bar, self.scan_bar.show_progress))
        self._follow()

    def shown(self) -> None:
        """Look at the folders again: images may have been added or removed."""
        self.scans.forget()
        self._follow()

    def hidden(self) -> None:
        """Do nothing: scans continue, for the cards and the editor."""

    def show_field(self, path: str) -> bool:
        """Select the concept at a path; for a field of it, open its editor at the field."""
        index, _, inner = path.removeprefix(PATH).removeprefix(".").partition(".")
        if not path.startswith(PATH) or (index.isdigit() and int(index) >= len(self._concepts())):
            return False
        if index.isdigit():
            self.select([int(index)])
        self.grid.canvas.focus_set()
        return self.edit(int(index)).show_field(path) if index.isdigit() and inner else True

    # -- commands

    @property
    def shown_cards(self) -> list[ConceptCard]:
        """The cards that the search and the filters leave."""
        return self.list.shown

    @property
    def selected(self) -> list[int]:
        """The indexes of the selected concepts."""
        return [self.shown_cards[n].index for n in sorted(self.grid.selection)]

    def select(self, indices: Sequence[int]) -> None:
        """Select concepts; filters that hide one of them are cleared."""
        if self.list.concepts is not self._concepts():
            self._refresh()
        wanted = set(indices)
        if not wanted <= {card.index for card in self.shown_cards}:
            self.filter_bar.clear()
            self._refresh()
        self.grid.select([n for n, card in enumerate(self.shown_cards) if card.index in wanted])

    def ask_folders(self) -> None:
        """Ask for folders and add a concept for each."""
        present = [from_root(c.path).parent for c in self._concepts() if c.path]
        start = next((p for p in reversed(present) if p.is_dir()), PROGRAM_ROOT)
        self.add_folders(self._context.interaction.ask_folders("Add folders of images", start))

    def add_folders(self, folders: Iterable[Path]) -> None:
        """Add a concept for each folder and archive; another dropped file stands for its folder."""
        key, number = (self, "add"), len(self._concepts())
        self._context.pump.finish(key)  # what was added just before
        task = adding(folders, made=lambda n, concept: self.list.make(number + n, concept), add=self._add)
        self._context.pump.work_through(key, task)

    def _add(self, concepts: Sequence[Concept]) -> None:
        """Add new concepts: many on the next turn of the pump, because making them took this one."""
        if len(concepts) > _MANY:
            self._context.pump.redraw_soon(object(), partial(self._append, concepts))
        else:
            self._append(concepts)

    def _append(self, concepts: Sequence[Concept]) -> None:
        self.select(items.add(self._context.form, PATH, concepts))

    def edit(self, index: int) -> ConceptEditor:
        """Open the editor of a concept."""
        from ui.features.concepts.window import ConceptEditor  # it needs NumPy, which the page is drawn without

        self._close_editor()
        self.editor = ConceptEditor(self._context, self.scans, self.thumbnails, f"{PATH}.{index}", self.edit)
        return self.editor

    def edit_selected(self) -> None:
        """Open the editor of the first selected concept."""
        if self.selected:
            self.edit(self.selected[0])

    def clone_selected(self) -> None:
        """Clone each selected concept, with another augmentation seed, and select the clones."""
        if self.selected:
            self._close_editor()
            self.select(clone(self._context.form, PATH, self.selected))

    def toggle_indices(self, indices: Sequence[int], *, to: bool | None = None) -> None:
        """Enable or disable concepts: the opposite of the first one's state by default."""
        if indices:
            is_on = not self._concepts()[indices[0]].enabled if to is None else to
            items.change(self._context.form, PATH, indices, enabled=is_on)

    def remove_indices(self, indices: Sequence[int]) -> None:
        """Remove concepts and offer to undo it. Their files stay."""
        if indices:
            self._close_editor()
            names = [card.name for card in self.list.cards if card.index in indices]
            items.remove(self._context.form, PATH, indices)
            what = names[0] if len(names) == 1 else count(len(names), "concept")
            self.undo_bar.offer(f"Removed {what} from the config; no file was deleted.")
            self._refresh()
            self.grid.select([max(0, min(self.grid.current, len(self.shown_cards) - 1))])

    def move_indices(self, indices: Sequence[int], before: int) -> None:
        """Move concepts before the one at an index."""
        if indices:
            self._close_editor()
            self.select(items.move_before(self._context.form, PATH, indices, before))

    # -- the grid's handler

    def open_card(self, number: int) -> None:
        """Open the editor of a card's concept."""
        self.edit(self.shown_cards[number].index)

    def toggle(self, numbers: Sequence[int]) -> None:
        """Enable or disable the concepts of cards."""
        self.toggle_indices([self.shown_cards[n].index for n in numbers])

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove the concepts of cards."""
        self.remove_indices([self.shown_cards[n].index for n in numbers])

    def move(self, numbers: Sequence[int], before: int) -> None:
        """Move the concepts of cards before another card."""
        end = self.shown_cards[-1].index + 1 if self.shown_cards else 0
        target = self.shown_cards[before].index if before < len(self.shown_cards) else end
        self.move_indices([self.shown_cards[n].index for n in numbers], target)

    def pointed_at(self, number: int | None, event: tk.Event[Any]) -> None:
        """Show the whole text of a card as a tooltip."""
        self._context.tips.point_at(event, lambda: self._tip(number))

    def open_menu(self, _number: int, event: tk.Event[Any]) -> None:
        """Open the menu of the selected cards."""
        self.menu().tk_popup(event.x_root, event.y_root)

    def selected_changed(self) -> None:
        """Enable the buttons that need a selection."""
        for name in ("edit", "clone", "toggle", "remove", "earlier", "later"):
            self.buttons[name].set_enabled(bool(self.grid.selection))

    def menu(self) -> tk.Menu:
        """Return the menu of the selected cards."""
        chosen = self.selected
        commands: dict[str, Callable[[], object]] = {"Edit…": self.edit_selected}
        if chosen:
            commands[CAPTIONS_LABEL] = partial(self._context.links.edit_captions, chosen[0])
        commands |= {
            "Open folder": self._open_folder,
            "Clone": self.clone_selected,
            "Enable": partial(self.toggle_indices, chosen, to=True),
            "Disable": partial(self.toggle_indices, chosen, to=False),
            "Remove": partial(self.remove_indices, chosen),
        }
        return concepts_menu(self.frame, self._context.theme, commands)

    # -- building

    def _add_body(self) -> None:
        context, px = self._context, self._context.theme.px
        body = Panel(self.frame, context.theme)
        body.grid(row=1, column=0, sticky="nsew", padx=(px(PAD + 4), px(4)))
        body.columnconfigure(0, weight=1)
        body.rowconfigure(2, weight=1)
        toolbar = Panel(body, context.theme)
        toolbar.grid(row=0, column=0, sticky="ew", pady=(0, px(GAP)))
        for name, label, command, tip in self._commands():
            button = Button(toolbar, context.theme, label, command, style="primary" if name == "add" else "plain")
            button.pack(side="left", padx=(0, GAP))
            context.tips.attach(button, partial(str, tip))
            self.buttons[name] = button
        self.filter_bar = FilterBar(body, context, _kinds(), self._filter_changed, self._enable_shown)
        self.filter_bar.grid(row=1, column=0, sticky="ew", pady=(0, px(12)))
        self.grid = CardGrid(body, context.theme, context.pump, _Handler(self), self._load)
        self.grid.grid(row=2, column=0, sticky="nsew")
        self._empty = Text(self.grid.canvas, context.theme, colour="faint", justify="center", anchor="center")
        self.grid.canvas.bind(
            "<Configure>", lambda _e: context.pump.redraw_soon((self, "hint"), self._show_hint), add="+"
        )
        self.undo_bar = UndoBar(body, context, PATH)
        self.undo_bar.grid(row=3, column=0, sticky="ew", pady=(px(GAP), px(GAP)), padx=(0, px(PAD)))
        self.undo_bar.grid_remove()
        self.scan_bar = ScanBar(body, context, self.scans, self._scan_again)
        self.scan_bar.grid(row=4, column=0, sticky="ew", pady=(px(GAP), px(GAP)), padx=(0, px(PAD)))
        self.scan_bar.grid_remove()
        self.selected_changed()

    def _commands(self) -> tuple[tuple[str, str, Any, str], ...]:
        return (
            ("add", "Add folders…", self.ask_folders, "Choose one or more folders; or drop them on the page"),
            ("edit", "Edit…", self.edit_selected, "Open the editor (Return, double click)"),
            ("clone", "Clone", self.clone_selected, "Copy the selected concepts, with another augmentation seed"),
            ("toggle", "On / off", lambda: self.toggle_indices(self.selected), "Enable or disable (Space)"),
            ("remove", "Remove", lambda: self.remove_indices(self.selected), "Remove from the config (Delete)"),
            ("earlier", "←", lambda: self._step(-1), "Move before the one before (Alt+Left, or drag)"),
            ("later", "→", lambda: self._step(1), "Move behind the next one (Alt+Right, or drag)"),
        )

    def _step(self, by: int) -> None:
        chosen = self.selected
        if chosen:
            self.move_indices(chosen, max(0, chosen[0] - 1) if by < 0 else min(len(self._concepts()), chosen[-1] + 2))

    # -- following

    def _concepts(self) -> tuple[Concept, ...]:
        concepts: tuple[Any, ...] = items.items_of(self._context.form, PATH)
        return concepts

    def _follow(self) -> None:
        """Show the concepts and scan the new ones."""
        concepts = self._concepts()
        self.scans.keep_only(concepts)
        for concept in concepts:
            self.scans.want(concept, self._scanned)
        self._refresh()

    def _scanned(self) -> None:
        self._context.pump.redraw_soon(self, self._refresh, at_most_every_seconds=_REFRESH_SECONDS)

    def _filter_changed(self) -> None:
        self.grid.select((), is_seen=False)
        self._refresh()

    def _refresh(self) -> None:
        self.list.follow(self._concepts())
        self.grid.show(self.list.choose(self.filter_bar.filter))
        self.filter_bar.show_count(len(self.shown_cards), len(self.list.cards), self.list.num_disabled)
        self._summary.set_text(self.list.summary)
        self._show_hint()
        self.scans.prefer(self._concepts()[self.shown_cards[n].index] for n in self.grid.in_sight)

    def _show_hint(self) -> None:
        """Say how to add concepts where there are none, and below a few."""
        if not self.shown_cards:
            self._empty.set_text(_NONE_FOUND if self.list.cards else _NOTHING_YET)
            self._empty.place(relx=0.5, rely=0.4, anchor="center")
        elif 0 < self.grid.content_height() < _FEW * self.grid.canvas.winfo_height():
            self._empty.set_text(_MORE)
            self._empty.place(relx=0.5, rely=0.96, anchor="s")
        else:
            self._empty.place_forget()

    def _scan_again(self) -> None:
        self.scans.forget()
        self._follow()

    def _enable_shown(self, *, to: bool) -> None:
        self.toggle_indices([card.index for card in self.shown_cards], to=to)

    def _tip(self, number: int | None) -> str:
        return self.shown_cards[number].tip if number is not None and number < len(self.shown_cards) else ""

    def _load(self, paths: tuple[Path, ...], size: int) -> Image.Image:
        """Return the image of a card; on a background thread."""
        width, height = size >> 16, size & 0xFFFF
        colour = self._context.theme.colour("card")
        return collage(paths, width, height, gap_colour=colour, cache=self.thumbnails)

    def _open_folder(self) -> None:
        for index in self.selected[:1]:
            folder = from_root(self._concepts()[index].path)
            self._context.interaction.open_path(folder if folder.is_dir() else folder.parent)

    def _dropped(self, paths: Sequence[Path]) -> None:
        """Load a dropped config, as everywhere in the window; anything else is a concept."""
        if not self._context.documents.open_dropped(paths):
            self.add_folders(paths)

    def _close_editor(self) -> None:
        if self.editor is not None and self.editor.winfo_exists():
            self.editor.close()
        self.editor = None


class _Handler:
    """Passes what happens in the grid to the page."""

    def __init__(self, page: ConceptsPage) -> None:
        self.open_card, self.toggle, self.remove, self.move = page.open_card, page.toggle, page.remove, page.move
        self.pointed_at, self.open_menu, self.selected = page.pointed_at, page.open_menu, page.selected_changed


def _kinds() -> dict[str, str]:
    record = next(r for r in records_of(Concept) if r.path == "kind")
    return dict(record.choices)
