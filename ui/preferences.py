"""The window's settings, with a signal for changes. No Tk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modules.system.paths import PROGRAM_ROOT
from ui.files.places import with_recent
from ui.settings import UiSettings
from ui.signal import Signal


class Preferences:
    """Holds the window's settings."""

    def __init__(self, settings: UiSettings) -> None:
        self.now = settings
        self.changed: Signal[[]] = Signal()

    def change(self, **updates: Any) -> None:
        """Change some settings and emit the signal; equal values are no change."""
        changed = self.now.model_copy(update=updates)
        if changed != self.now:
            self.now = changed
            self.changed()

    def note_file(self, path: Path) -> None:
        """Add a config file to the recent ones."""
        self.change(recent=self.now.with_recent(path).recent, last_folder=str(path.parent))

    def note_workspace(self, path: Path) -> None:
        """Remember a workspace, whose runs the Run history page lists."""
        self.change(workspaces=self.now.with_workspace(path).workspaces)

    def forget_file(self, path: Path) -> None:
        """Remove a file from the recent ones."""
        self.change(recent=tuple(name for name in self.now.recent if name != str(path)))

    def note_folder(self, folder: Path) -> None:
        """Add a folder in which a file dialog was answered to the recent ones."""
        self.change(recent_folders=with_recent(self.now.recent_folders, folder))

    @property
    def last_folder(self) -> Path:
        """The folder of the last file dialog, if it still exists."""
        folder = Path(self.now.last_folder)
        return folder if self.now.last_folder and folder.is_dir() else PROGRAM_ROOT
