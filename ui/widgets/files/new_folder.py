"""Creating a folder in a file dialog: the bar with its name, and the rules for names."""

from __future__ import annotations

import errno
import tkinter as tk
from collections.abc import Callable
from pathlib import Path

from modules.system.errors import DarkroomError
from modules.system.paths import safe_name
from ui.widgets.controls import Button
from ui.widgets.entry import Entry
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.theme import GAP, Theme
from ui.widgets.variables import TextVar

_PROPOSED = "New folder"


class NewFolderBar(Panel):
    """Shown below the path by `ask`. `create(name)` returns why it was not created; `left()` takes the focus."""

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        *,
        below: tk.Widget,
        create: Callable[[str], str],
        left: Callable[[], object],
    ) -> None:
        super().__init__(master, theme)
        self._below = below
        self.name = TextVar(master=self)
        self._create, self._left = create, left
        self.message = WrappedText(self, theme, role="small", colour="error")
        Text(self, theme, "New folder", colour="label").pack(side="left", padx=(0, GAP))
        self.cancel_button = Button(self, theme, "Cancel", self.close, width=72)
        self.cancel_button.pack(side="right", padx=(GAP, 0))
        self.create_button = Button(self, theme, "Create", self.create, width=72)
        self.create_button.pack(side="right", padx=(GAP, 0))
        self.entry = Entry(self, theme, self.name, on="window", placeholder="Name")
        self.entry.pack(side="left", fill="x", expand=True)
        inner = self.entry.tk_entry
        inner.bind("<Return>", lambda _e: self.create())
        inner.bind("<Escape>", lambda _e: self.close())
        self.name.trace_add("write", lambda *_: self._show_reason(""))

    def ask(self) -> None:
        """Appear with a name that can be typed over."""
        self.name.set(_PROPOSED)
        self.pack(side="top", fill="x", after=self._below, pady=(0, self.theme.px(10)))
        self.entry.tk_entry.focus_force()
        self.entry.tk_entry.select_range(0, "end")

    def create(self) -> str:
        """Create the folder; a name that is refused can be corrected."""
        reason = self._create(self.name.get())
        self._show_reason(reason)
        if not reason:
            self.close()
        return "break"

    def _show_reason(self, reason: str) -> None:
        """Show why the name cannot be used, below it."""
        self.entry.mark_invalid(bool(reason))
        self.message.set_text(reason)
        if reason:
            self.message.pack(side="bottom", fill="x", before=self.winfo_children()[1], pady=(self.theme.px(4), 0))
        else:
            self.message.pack_forget()

    def close(self) -> str:
        """Disappear."""
        self.pack_forget()
        self._left()
        return "break"


_MAX_BYTES = 255  # of a name, on every usual file system
_RESERVED = '<>:"/\\|?*'


def create_folder(parent: Path, name: str) -> Path:
    """Create a folder in another and return it.

    Raises DarkroomError for a name that some system does not accept, one that is taken, and where nothing can be
    written.
    """
    wanted = name.strip()
    _check(wanted)
    folder = parent / wanted
    try:
        folder.mkdir()
    except FileExistsError:
        kind = "A folder" if folder.is_dir() else "A file"
        raise DarkroomError(f"{kind} named {wanted} is already in {parent}.", advice="Type another name.") from None
    except PermissionError:
        advice = "Choose a folder of your own, or ask the owner for access."
        raise DarkroomError(f"You have no permission to create a folder in {parent}.", advice=advice) from None
    except FileNotFoundError:
        raise DarkroomError(f"{parent} does not exist any more.", advice="Open another folder.") from None
    except OSError as error:
        raise DarkroomError(
            f"{wanted} could not be created in {parent}: {_reason(error)}.", advice=_ADVICE.get(error.errno or 0, "")
        ) from error
    return folder


def _check(name: str) -> None:
    if not name:
        raise DarkroomError("Type a name for the new folder.")
    if name in (".", ".."):
        raise DarkroomError(f"{name} stands for an existing folder.", advice="Type another name.")
    if bad := next((char for char in name if char in _RESERVED or not char.isprintable()), ""):
        shown = bad if bad.isprintable() else "a control character"
        raise DarkroomError(f"The name of a folder cannot contain {shown}.", advice="Leave it out.")
    if name.endswith("."):
        raise DarkroomError("The name of a folder cannot end with a dot on Windows.", advice="Leave it out.")
    if len(name.encode("utf-8")) > _MAX_BYTES:
        raise DarkroomError(f"The name is too long: at most {_MAX_BYTES} bytes.", advice="Type a shorter one.")
    if safe_name(name).startswith("_") and not name.startswith("_"):
        raise DarkroomError(f"{name} is the name of a device on Windows.", advice="Type another name.")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


_ADVICE = {
    errno.ENOSPC: "Free some space or choose another disk.",
    errno.EROFS: "This disk is read-only. Choose another one.",
    errno.ENAMETOOLONG: "Type a shorter name.",
}
