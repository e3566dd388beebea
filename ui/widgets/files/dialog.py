"""The dialog for opening files, saving files and choosing folders."""

from __future__ import annotations

import threading
import tkinter as tk
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from modules.system.errors import DarkroomError
from modules.system.problem import format_size
from ui.loop.background import Job, cancel
from ui.loop.interaction import REPLACE_FILE, Answer, FileKind
from ui.widgets.controls import Button, Choice, Switch
from ui.widgets.dialog import Dialog
from ui.widgets.entry import Entry as TextEntry
from ui.widgets.files.board import FileBoard
from ui.widgets.files.browser import Browser, DialogAnswer, Enter, Outcome, Purpose, Rejection
from ui.widgets.files.listing import Contents, Counts, Entry, count_images, folder_of, read_folder
from ui.widgets.files.location import PathEntry, PlacesList
from ui.widgets.files.new_folder import NewFolderBar, create_folder
from ui.widgets.files.places import mounted_disks, places
from ui.widgets.panel import Panel, Text, call_later
from ui.widgets.theme import GAP, Theme
from ui.widgets.variables import FlagVar, TextVar

if TYPE_CHECKING:
    from ui.widgets.tk_interaction import FileServices

_SIZE = (920, 600)
_MIN_LIST_PX = 120
_PATH_STARTS = ("/", "~")
_FIND_PAUSE_MS = 1200
_BUTTONS = {"open": "Open", "save": "Save", "folder": "Choose", "folders": "Choose"}


class FileDialog(Dialog):
    """Call `ask_paths`; it returns the chosen paths, none if the dialog was cancelled."""

    def __init__(
        self,
        root: tk.Misc,
        theme: Theme,
        services: FileServices,
        purpose: Purpose,
        title: str,
        start: Path,
        kinds: Sequence[FileKind] = (),
    ) -> None:
        answers = (Answer("cancel", "Cancel"), Answer("ok", _BUTTONS[purpose], is_default=True))
        super().__init__(root, theme, title, "", answers)
        folder = folder_of(start.parent if purpose == "save" and not start.is_dir() else start)
        name = start.name if purpose == "save" and start != folder else ""
        self.browser = Browser(purpose, folder, kinds, name=name)
        self.browser.show_hidden = services.memory.shows_hidden_files
        self._services = services
        self._counts: dict[Path, Counts | None] = {}
        self._leaving = threading.Event()
        self._jobs: WeakSet[Job] = WeakSet()
        self._result: tuple[Path, ...] = ()
        self._found_text, self._find_job = "", ""
        self._path_before = ""  # when the folder that is listed was asked for
        self._tiles_are_chosen = False
        self.path = TextVar(master=self)
        self.name = TextVar(master=self, value=name)
        self.kind = TextVar(master=self, value="0")
        self.hidden = FlagVar(master=self, value=self.browser.show_hidden)
        self._add_path_bar()
        self._add_options()
        self._add_places()
        self.board = FileBoard(
            self.content, theme, services.pump, self.browser,
            detail_of=self._detail, on_select=self._follow_selection, on_activate=self._activate,
        )  # fmt: skip
        self.board.pack(side="left", fill="both", expand=True)
        for part in (self.board.canvas, self.places.canvas):
            part.configure(height=theme.px(_MIN_LIST_PX))  # they get the rest; what they ask for comes first
        self._bind_keys()
        self.open(folder, focus=start if start != folder else None)

    # -- answering

    def ask_paths(self) -> tuple[Path, ...]:
        """Show the dialog and return the chosen paths."""
        screen = (self.winfo_screenwidth() / self.theme.scale, self.winfo_screenheight() / self.theme.scale)
        self.appear(*(min(want, int(have) - 40) for want, have in zip(_SIZE, screen, strict=True)))
        self.minsize(self.theme.px(560), self.theme.px(380))
        self.wait_visibility()
        self.grab_set()
        self.focus_first(self.buttons["ok"])
        self.wait_window()
        return self._result

    def focus_first(self, default: Button) -> None:
        """Focus the name of a file to save, else the list."""
        del default
        if self.browser.purpose == "save":
            self.name_entry.tk_entry.focus_force()
            self.name_entry.tk_entry.select_range(0, len(Path(self.name.get()).stem))
        else:
            self.board.canvas.focus_force()

    def choose(self, name: str) -> None:
        """Press a button."""
        if name != "ok":
            super().choose(name)
        elif self.path_entry.is_edited:
            self._take_typed(chooses_folders=self.browser.purpose in ("folder", "folders"))
        else:
            self.browser.name = self.name.get()
            self._take(self.browser.answer())

    def open(self, folder: Path, *, focus: Path | None = None) -> None:
        """List a folder in the background and show it."""
        self._leave()
        token, self._path_before = self._leaving, self.path.get()
        job = self._services.pump.background.run(
            lambda: read_folder(folder, is_cancelled=token.is_set), partial(self._show, token, focus)
        )
        self._jobs.add(job)

    def create_folder(self, name: str) -> str:
        """Create a folder in the open one and select it; a file is then saved in it. Return why that is impossible."""
        try:
            folder = create_folder(self.browser.folder, name)
        except DarkroomError as error:
            return str(error)
        if folder.name.startswith(".") and not self.browser.show_hidden:
            self._toggle_hidden()
        if self.browser.purpose == "save":
            self.open(folder)
        else:
            self.open(self.browser.folder, focus=folder)
        return ""

    def destroy(self) -> None:
        """Also cancel what runs in the background."""
        self._leaving.set()
        cancel(*self._jobs)
        super().destroy()

    def _leave(self) -> None:
        """Cancel the listing and the counts of the folder that is open."""
        self._leaving.set()
        self._leaving = threading.Event()

    def _take(self, outcome: Outcome | None) -> None:
        match outcome:
            case Enter(folder):
                self.open(folder)
            case Rejection(reason):
                self._show_message(reason, "error")
            case DialogAnswer(paths, replaces) if not replaces or self._may_replace(paths[0]):
                self._result = paths
                is_folder = self.browser.purpose in ("folder", "folders")
                self._services.memory.note_folder(paths[0] if is_folder else paths[0].parent)
                super().choose("ok")

    def _may_replace(self, path: Path) -> bool:
        answers = (Answer("cancel", "Cancel", is_default=True), Answer("replace", "Replace"))
        message = f"{path.name} already exists in {path.parent}."
        question = Dialog(self, self.theme, REPLACE_FILE, message, answers, severity="warning")
        is_replaced = question.ask() == "replace"
        if self.winfo_exists():
            self.grab_set()
        return is_replaced

    # -- contents

    def _show(self, token: threading.Event, focus: Path | None, contents: Contents) -> None:
        if token.is_set():
            return
        came_from = self.browser.folder if self.browser.folder.parent == contents.folder else None
        self.browser.show(contents, focus=focus or came_from)
        self.path_entry.mark_invalid(bool(contents.problem))
        if not contents.problem:
            if self.path.get() == self._path_before:  # nothing was typed while the folder was read
                self.path_entry.show_folder(str(self.browser.folder))
            if not self._tiles_are_chosen:
                self._show_tiles(self.browser.shows_mostly_images)
            self._refresh_board()
        self._show_message(*self.browser.status())

    def _refresh_board(self) -> None:
        self.board.empty_text = "Nothing to show here." if self.browser.purpose != "folder" else "No folders or images."
        self.board.show_folder()

    def _detail(self, entry: Entry) -> str:
        """Return the second column of a row; the images of a folder are counted in the background."""
        if not entry.is_folder:
            return format_size(entry.size_bytes)
        if entry.path not in self._counts:
            self._counts[entry.path] = None
            token = self._leaving
            job = self._services.pump.background.run(
                lambda: count_images(entry.path, is_cancelled=token.is_set),
                partial(self._show_counts, token, entry.path),
            )
            self._jobs.add(job)
        counts = self._counts[entry.path]
        return counts.words() if counts is not None else ""

    def _show_counts(self, token: threading.Event, folder: Path, counts: Counts) -> None:
        if token.is_set():
            self._counts.pop(folder, None)  # perhaps only a part was counted
            return
        self._counts[folder] = counts
        self.board.draw_soon()
        self._show_status()

    def _show_message(self, text: str, token: str = "muted") -> None:
        self.status.set_text(text)
        self.status.recolour(token)

    # -- reacting

    def _follow_selection(self) -> None:
        browser = self.browser
        if browser.purpose == "save" and browser.name != self.name.get() and browser.selected:
            index = next(iter(browser.selected))
            if not browser.shown[index].is_folder:
                self.name.set(browser.name)
        if self.path_entry.is_edited:
            self.path_entry.show_folder(str(browser.folder))
        self._show_status()

    def _show_status(self) -> None:
        browser = self.browser
        chosen = [browser.shown[i] for i in browser.selected]
        if len(chosen) == 1 and chosen[0].is_folder:
            counts = self._counts.get(chosen[0].path)
            if counts is not None and counts.images:
                self._show_message(f"{counts.words()} in {chosen[0].name}", "text")
                return
        self._show_message(*browser.status())

    def _activate(self) -> None:
        self.browser.name = self.name.get()
        self._take(self.browser.activate())

    def _typed_path(self, _event: object) -> str:
        self._take_typed()
        return "break"

    def _take_typed(self, *, chooses_folders: bool = False) -> None:
        """Take the path that was typed; a folder is opened, or with `chooses_folders` the answer."""
        outcome = self.browser.typed(self.path.get())
        if chooses_folders and isinstance(outcome, Enter):
            outcome = DialogAnswer((outcome.folder,))
        self.path_entry.mark_invalid(isinstance(outcome, Rejection))
        self._take(outcome)
        if isinstance(outcome, Enter):
            self.board.canvas.focus_set()

    def _key(self, event: tk.Event[Any]) -> str | None:
        """Find the entry that begins with the letters typed; a path is typed into its own field."""
        if not event.char or not event.char.isprintable() or int(event.state) & 0x4:
            return None
        if event.char in _PATH_STARTS and not self._found_text:
            self.path.set(event.char)
            self.path_entry.tk_entry.focus_set()
            self.path_entry.tk_entry.icursor("end")
            return "break"
        if self._find_job:
            self.master.after_cancel(self._find_job)
        self._find_job = call_later(self, _FIND_PAUSE_MS, self._forget_find)
        self._found_text += event.char
        if self.browser.find(self._found_text):
            self.board.see_cursor()
            self._follow_selection()
        else:
            self._show_message(f"Nothing here matches “{self._found_text}”.", "muted")
        return "break"

    def _forget_find(self) -> None:
        self._found_text, self._find_job = "", ""

    def _up(self, _event: object = None) -> str:
        self.open(self.browser.folder.parent)
        return "break"

    def _select_all(self, _event: object) -> str:
        self.browser.select_all()
        self.board.draw_soon()
        self._follow_selection()
        return "break"

    def _follow_filter(self) -> None:
        self.browser.set_filter(kind=int(self.kind.get()), show_hidden=bool(self.hidden.get()))
        self._services.memory.show_hidden_files(self.browser.show_hidden)
        self._refresh_board()
        self._show_message(*self.browser.status())

    def _toggle_tiles(self) -> None:
        self._tiles_are_chosen = True
        self._show_tiles(not self.board.as_tiles)
        self.board.see_cursor()

    def _show_tiles(self, as_tiles: bool) -> None:
        self.board.as_tiles = as_tiles
        self.view_button.configure(text="List" if as_tiles else "Tiles")

    # -- building

    def _add_path_bar(self) -> None:
        theme, px = self.theme, self.theme.px
        bar = Panel(self.content, theme)
        bar.pack(side="top", fill="x", pady=(px(10), px(10)))
        self.view_button = Button(bar, theme, "Tiles", self._toggle_tiles, width=56)
        self.view_button.pack(side="right", padx=(GAP, 0))
        if self.browser.purpose != "open":
            self.new_folder_button = Button(bar, theme, "New folder…", self._ask_new_folder, width=96)
            self.new_folder_button.pack(side="right", padx=(GAP, 0))
            self.new_folder_bar = NewFolderBar(
                self.content, theme, below=bar, create=self.create_folder, left=lambda: self.board.canvas.focus_set()
            )
            self.bind("<Control-N>", self._ask_new_folder)
        self.up_button = Button(bar, theme, "Up", self._up, width=48)
        self.up_button.pack(side="left", padx=(0, GAP))
        self.path_entry = PathEntry(
            bar,
            theme,
            self.path,
            self.browser,
            background=self._services.pump.background,
            show_message=self._show_message,
        )
        self.path_entry.pack(side="left", fill="x", expand=True)
        self.path_entry.tk_entry.bind("<Return>", self._typed_path)

    def _add_options(self) -> None:
        theme, px = self.theme, self.theme.px
        bar = Panel(self.content, theme)
        bar.pack(side="bottom", fill="x", pady=(px(8), px(10)))
        if len(self.browser.kinds) > 1 and self.browser.purpose in ("open", "save"):
            labels = {str(n): label for n, (label, _pattern) in enumerate(self.browser.kinds)}
            self.kind_choice = Choice(
                bar, theme, self.kind, labels, on="window", width=240, command=lambda _n: self._follow_filter()
            )
            self.kind_choice.pack(side="right", padx=(GAP, 0))
        Switch(bar, theme, self.hidden, on="window", text="Hidden files", command=self._follow_filter).pack(
            side="right"
        )
        self.status = Text(bar, theme, "", colour="muted", role="small")
        self.status.pack(side="left", fill="x", expand=True)
        if self.browser.purpose == "save":
            row = Panel(self.content, theme)
            row.pack(side="bottom", fill="x", pady=(px(10), 0))
            Text(row, theme, "Name", colour="label").pack(side="left", padx=(0, GAP))
            self.name_entry = TextEntry(row, theme, self.name, on="window")
            self.name_entry.pack(side="left", fill="x", expand=True)
            self.name_entry.tk_entry.bind("<Return>", lambda _e: self._pressed_return())

    def _add_places(self) -> None:
        services = self._services
        found = places(services.places(), services.memory.recent_folders, mounted_disks())
        self.places = PlacesList(self.content, self.theme, found, self._go)
        self.places.pack(side="left", fill="y", padx=(0, self.theme.px(GAP)))

    def _go(self, folder: Path) -> None:
        self.open(folder)
        self.board.canvas.focus_set()

    def _ask_new_folder(self, _event: object = None) -> str:
        self.new_folder_bar.ask()
        return "break"

    def _pressed_return(self) -> str:
        self.choose("ok")
        return "break"

    def _bind_keys(self) -> None:
        canvas = self.board.canvas
        canvas.bind("<BackSpace>", self._up)
        canvas.bind("<Alt-Up>", self._up)
        canvas.bind("<Control-a>", self._select_all)
        canvas.bind("<KeyPress>", self._key)
        self.bind("<Control-l>", lambda _e: self._edit_path())
        self.bind("<Control-h>", lambda _e: self._toggle_hidden())

    def _edit_path(self) -> str:
        self.path_entry.tk_entry.focus_set()
        self.path_entry.tk_entry.select_range(0, "end")
        return "break"

    def _toggle_hidden(self) -> str:
        self.hidden.set(not self.hidden.get())
        self._follow_filter()
        return "break"
