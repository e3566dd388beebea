"""Where the file dialog goes: the entry in which a path is typed, which Tab completes, and the places at its side, a
button for each folder.
"""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from ui.loop.background import Background
from ui.widgets.controls import Button
from ui.widgets.entry import Entry
from ui.widgets.files.browser import Browser, common_start, completions
from ui.widgets.files.listing import Contents, read_folder
from ui.widgets.files.places import Place
from ui.widgets.panel import Text
from ui.widgets.scroll import ScrollFrame
from ui.widgets.theme import PAD, Theme

_MAX_NAMED = 6


class PathEntry(Entry):
    """Completes a path as far as it is unambiguous; `show_message(text, token)` lists the completions."""

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        path: tk.StringVar,
        browser: Browser,
        *,
        background: Background,
        show_message: Callable[[str, str], object],
    ) -> None:
        super().__init__(master, theme, path, on="window", placeholder="Folder")
        self._path, self._browser = path, browser
        self._run_in_background = background.run
        self._show_message = show_message
        self._folder = ""
        self.tk_entry.bind("<Tab>", self._complete)

    @property
    def is_edited(self) -> bool:
        """Whether a path was typed since a folder was shown."""
        return self._path.get() != self._folder

    def show_folder(self, folder: str) -> None:
        """Show the path of the open folder."""
        self._folder = folder
        self._show(folder)

    def _show(self, path: str) -> None:
        """Show a path, with the end of it in sight."""
        self._path.set(path)
        self.tk_entry.icursor("end")
        self.tk_entry.xview_moveto(1)

    def _complete(self, _event: object) -> str:
        text = self._path.get()
        whole = self._browser.path_of(text)
        folder = whole if text.endswith(("/", "\\")) else whole.parent
        self._run_in_background(lambda: read_folder(folder), partial(self._insert_completion, text))
        return "break"

    def _insert_completion(self, text: str, contents: Contents) -> None:
        if not self.winfo_exists() or self._path.get() != text:
            return
        folders_only = self._browser.purpose in ("folder", "folders")
        is_folder = {e.name: e.is_folder for e in contents.entries if e.is_folder or not folders_only}
        names = completions(text, list(is_folder))
        shared = common_start(names)
        last = max(text.rfind("/"), text.rfind("\\")) + 1
        if not names:
            self._show_message("Nothing begins like this." if not contents.problem else contents.problem, "error")
            return
        end = "/" if len(names) == 1 and is_folder[names[0]] else ""
        if len(shared) >= len(text) - last:
            self._show(text[:last] + shared + end)
        more = "  …" if len(names) > _MAX_NAMED else ""
        self._show_message("  ".join(names[:_MAX_NAMED]) + more if len(names) > 1 else "", "muted")


_WIDTH_PX = 168
_MAX_CHARS = 20


class PlacesList(ScrollFrame):
    """`go(folder)` is called with the place that is pressed."""

    def __init__(self, master: tk.Misc, theme: Theme, places: Iterable[Place], go: Callable[[Path], object]) -> None:
        super().__init__(master, theme, "window")
        px = theme.px
        self.buttons: dict[Path, Button] = {}
        self.configure(width=px(_WIDTH_PX))
        self.canvas.configure(width=px(_WIDTH_PX - PAD))
        heading = ""
        for place in places:
            if place.heading != heading:
                heading = place.heading
                Text(self.body, theme, heading, colour="muted", role="caption").pack(
                    anchor="w", padx=px(6), pady=(px(8) if self.buttons else 0, px(2))
                )
            button = Button(
                self.body, theme, _short(place.label), partial(go, place.folder),
                style="ghost", width=_WIDTH_PX - PAD - 4, height=26, anchor="w",
            )  # fmt: skip
            button.pack(anchor="w")
            self.buttons[place.folder] = button


def _short(label: str) -> str:
    return label if len(label) <= _MAX_CHARS else f"{label[: _MAX_CHARS - 1]}…"
