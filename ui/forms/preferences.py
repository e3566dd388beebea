"""The window's settings, with a signal for changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict

from modules.system.file_lock import Holder
from ui.forms.setting_pages import HOME
from ui.loop.signal import Signal

if TYPE_CHECKING:
    from trainer.run_folder.attached import DetachedProcess

_MAX_RECENT = 8
_MAX_WORKSPACES = 30
_MAX_MODEL_FOLDERS = 20


class LeftProcess(BaseModel):
    """A process that outlives the window: its log, and the folder of its single run if that is known.

    One that runs the queue may train `only_next`, the next item.
    """

    model_config = ConfigDict(frozen=True)

    pid: int
    started: float
    log: str
    run_dir: str = ""
    only_next: bool = False

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return Holder.of(self.pid).started == self.started

    @property
    def detached(self) -> DetachedProcess:
        """The process, with its files."""
        from trainer.run_folder.attached import DetachedProcess

        return DetachedProcess(Holder.of(self.pid), Path(self.log))

    def find_run_dir(self) -> Path | None:
        """Return the folder of its run; None if it has none yet. For a background thread."""
        return Path(self.run_dir) if self.run_dir else self.detached.run_dir()


class UiSettings(BaseModel):
    """The window's settings. Keys of a newer version are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")

    geometry: str = ""
    page: str = HOME
    show_advanced: bool = False
    is_simple: bool = False  # the side bar has the page of what a LoRA needs instead of those with all settings
    appearance: Literal["dark", "light"] = "dark"
    first_steps: str = ""  # the way to begin whose steps are shown; empty for none
    scale_percent: Annotated[int, Ge(0), Le(400)] = 0  # 0: as measured on the screen
    captioner: str = ""  # with which captions were written last
    recent: tuple[str, ...] = ()
    last_folder: str = ""
    recent_folders: tuple[str, ...] = ()  # in which a file dialog was answered, the newest first
    shows_hidden_files: bool = False
    model_folders: tuple[str, ...] = ()  # of programs, or any other ones with models, that the user has named
    workspaces: tuple[str, ...] = ()  # of runs started so far, the newest first
    exposed_folders: tuple[str, ...] = ()  # of runs that TensorBoard may show to the network
    left_run: LeftProcess | None = None  # continues when the window is closed, or ends unexpectedly
    left_queue: LeftProcess | None = None  # runs the queue while the window is closed
    train_on: str = ""  # the machine that the next run trains on; empty for this one
    certificate: str = ""  # with which the page in the browser is served to the network; empty for none
    certificate_key: str = ""  # empty if the certificate's file has it
    dismissed_run: str = ""  # a run that ended unexpectedly and is not offered again

    def with_recent(self, path: Path) -> UiSettings:
        """Return the settings with a file first among the recent ones."""
        names = (str(path), *(r for r in self.recent if r != str(path)))
        return self.model_copy(update={"recent": names[:_MAX_RECENT]})

    def with_workspace(self, path: Path) -> UiSettings:
        """Return the settings with a workspace first among those whose runs are listed."""
        names = (str(path), *(w for w in self.workspaces if w != str(path)))
        return self.model_copy(update={"workspaces": names[:_MAX_WORKSPACES]})


class Preferences:
    """Holds the window's settings."""

    def __init__(self, settings: UiSettings) -> None:
        self.now = settings
        self.changed: Signal[[]] = Signal()

    def change(self, **updates: Any) -> None:
        """Change some settings, and emit the signal if any value differs."""
        settings = self.now.model_copy(update=updates)
        if settings != self.now:
            self.now = settings
            self.changed()

    def note_file(self, path: Path) -> None:
        """Add a config file to the recent ones."""
        self.change(recent=self.now.with_recent(path).recent, last_folder=str(path.parent))

    def note_workspace(self, path: Path) -> None:
        """Remember a workspace, whose runs the Run history page lists."""
        self.change(workspaces=self.now.with_workspace(path).workspaces)

    def note_model_folder(self, folder: Path) -> None:
        """Remember a folder of a program that keeps models, or any other one with models."""
        others = (name for name in self.now.model_folders if name != str(folder))
        self.change(model_folders=(str(folder), *others)[:_MAX_MODEL_FOLDERS])

    def forget_file(self, path: Path) -> None:
        """Remove a file from the recent ones."""
        self.change(recent=tuple(name for name in self.now.recent if name != str(path)))

    def note_folder(self, folder: Path) -> None:
        """Add a folder in which a file dialog was answered to the recent ones."""
        others = (name for name in self.now.recent_folders if name != str(folder))
        self.change(recent_folders=(str(folder), *others)[:_MAX_RECENT])

    @property
    def recent_folders(self) -> tuple[str, ...]:
        """The folders in which a file dialog was answered, the newest first."""
        return self.now.recent_folders

    @property
    def shows_hidden_files(self) -> bool:
        """Whether file dialogs list hidden files."""
        return self.now.shows_hidden_files

    def show_hidden_files(self, shows: bool) -> None:
        """List hidden files in file dialogs, or not."""
        self.change(shows_hidden_files=shows)

    @property
    def last_folder(self) -> Path:
        """The folder of the last file dialog, if it still exists; else the user's home."""
        folder = Path(self.now.last_folder)
        return folder if self.now.last_folder and folder.is_dir() else Path.home()
