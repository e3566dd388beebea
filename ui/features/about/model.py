"""The contents of the About window and of the list of keys."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass

from modules.system.hardware import torch_build
from modules.system.paths import PROGRAM_ROOT, log_dir, session_file, user_presets_dir
from ui.loop.diagnostics import system_facts
from ui.widgets.actions import Action

DOCUMENTS = (("README", "README.md"), ("Window", "docs/window.md"), ("Settings", "docs/generated/settings.md"),
             ("Changes", "CHANGELOG.md"), ("Licence", "LICENSE"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fact:
    """A labelled fact of the installation."""

    label: str
    value: str
    is_path: bool = False


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key or click, and what it does; the heading groups rows."""

    heading: str
    key: str
    what: str


def about_lines() -> tuple[Fact, ...]:
    """Return the facts of this installation."""
    project = tomllib.loads((PROGRAM_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    python, *packages = system_facts()
    return (
        Fact("Version", project["version"]),
        Fact("Licence", project["license"]),
        Fact("System", python),
        Fact("Packages", ", ".join(packages)),
        Fact("torch build", torch_build() or "default"),
        Fact("Program", str(PROGRAM_ROOT), is_path=True),
        Fact("Your presets", str(user_presets_dir()), is_path=True),
        Fact("Sessions", str(session_file().parent), is_path=True),
        Fact("Logs", str(log_dir()), is_path=True),
    )


def key_rows(actions: Iterable[Action]) -> tuple[KeyRow, ...]:
    """Return every key of the window: of the actions, the lists and the dialogs."""
    keyed = [a for a in actions if a.shortcut]
    pages = [a for a in keyed if a.name.startswith("page_")]
    others = [a for a in keyed if a not in pages]
    return (
        *(KeyRow("Actions", a.shortcut, a.help or a.label.rstrip("…")) for a in others),
        *(KeyRow("Pages", a.shortcut, a.label) for a in pages),
        *(KeyRow(*row) for row in _OTHER_KEYS),
    )


_OTHER_KEYS = (
    ("Everywhere", "Tab, Shift+Tab", "Next and previous field"),
    ("Everywhere", "Space or Return", "Press the button, flip the switch or open the list that has the focus"),
    ("Everywhere", "Escape", "Close the window or dialog"),
    ("Lists", "Up, Down, Page Up, Page Down, Home, End", "Select"),
    ("Lists", "Return or double click", "Open or show the selected entry"),
    ("Lists", "Delete", "Delete or revert the selected entries, where that is possible"),
    ("File dialog", "Letters", "Find an entry"),
    ("File dialog", "Backspace or Alt+Up", "The folder above"),
    ("File dialog", "Ctrl+L", "Type a path; Tab completes it"),
    ("File dialog", "Ctrl+H", "Show or hide hidden files"),
    ("File dialog", "Shift+Up, Shift+Down, Ctrl+A", "Select several folders"),
    ("Choose page", "Left or 1, Right or 2", "This image is better"),
    ("Choose page", "T or Down", "A tie"),
    ("Choose page", "S or Space", "Skip"),
    ("Choose page", "U or Backspace", "Take back the last choice"),
)
