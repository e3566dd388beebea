"""The entry of the file dialog in which a path is typed; Tab completes it."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import partial

from ui.loop.background import Background
from ui.widgets.entry import Entry
from ui.widgets.files.browser import Browser, common_start, completions
from ui.widgets.files.listing import Contents, read_folder
from ui.widgets.theme import Theme

_MAX_NAMED = 6


class PathEntry(Entry):
    """Completes a path as far as it is unambiguous; `say(text, token)` shows what it can be."""

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        path: tk.StringVar,
        browser: Browser,
        *,
        background: Background,
        say: Callable[[str, str], object],
    ) -> None:
        super().__init__(master, theme, path, on="window", placeholder="Folder")
        self._path, self._browser = path, browser
        self._run_in_background = background.run
        self._say = say
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
            self._say("Nothing begins like this." if not contents.problem else contents.problem, "error")
            return
        end = "/" if len(names) == 1 and is_folder[names[0]] else ""
        if len(shared) >= len(text) - last:
            self._show(text[:last] + shared + end)
        more = "  …" if len(names) > _MAX_NAMED else ""
        self._say("  ".join(names[:_MAX_NAMED]) + more if len(names) > 1 else "", "muted")
