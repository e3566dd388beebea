"""The window that frees space: what can be deleted, with its size, and a question before it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from modules.config.schema import Config
from modules.data.cache.entry_files import entry_files
from modules.estimate.disk import file_system_of, free_bytes
from modules.system.atomic import remove_folder
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from modules.system.problem import count, format_size
from trainer.data.hub_datasets import hub_cache_dir
from trainer.run_folder.backup import list_backups, remove_older
from trainer.run_folder.records import run_dirs_of, running_in, size_of
from trainer.run_folder.run_lock import holder_of
from trainer.run_folder.trash import empty_trash, trash_bytes
from ui.forms.context import Context
from ui.loop.background import Job, cancel
from ui.loop.interaction import Answer
from ui.widgets.controls import Button
from ui.widgets.dialog import Window
from ui.widgets.panel import Panel, WrappedText
from ui.widgets.table import Column, Table
from ui.widgets.theme import GAP, PAD

_CACHES = ("latents", "masks", "text")
_OF_HUB = {"models": "model", "datasets": "data set"}


@dataclass(frozen=True, slots=True)
class Deletable:
    """Something that can be deleted: its name, bytes, what happens then, and the function that deletes it."""

    name: str
    size_bytes: int
    then: str
    delete: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Space:
    """The free space of the disks that a run writes to, as a sentence, and what can be deleted, the largest first."""

    free: str
    items: tuple[Deletable, ...]


def find_space(config: Config, workspaces: Sequence[Path]) -> Space:
    """Return the free space, and what can be deleted of a config's caches and of the runs of some workspaces.

    For a background thread: it reads the sizes of whole folders.
    """
    deletable = (*_of_runs(workspaces), *_caches(config), *_downloads(config))
    items = sorted((item for item in deletable if item.size_bytes), key=lambda item: -item.size_bytes)
    return Space(_describe_free(config), tuple(items))


def delete(items: Sequence[Deletable], workspaces: Sequence[Path]) -> int:
    """Delete some things and return their bytes. Raises DarkroomError while a run trains, and OSError."""
    if any(True for workspace in workspaces for _ in running_in(workspace)):
        raise DarkroomError("A run is training, and may read these files.", advice="Wait until it has ended.")
    for item in items:
        item.delete()
    return sum(item.size_bytes for item in items)


def describe_deletion(items: Sequence[Deletable]) -> str:
    """Return the question about a deletion: each thing with what happens then."""
    lines = [f"{item.name}, {format_size(item.size_bytes)}: {item.then}" for item in items]
    return "\n".join(["This cannot be undone.", "", *lines])


def _of_runs(workspaces: Sequence[Path]) -> Iterator[Deletable]:
    then = "They cannot be brought back."
    yield Deletable("Deleted runs", trash_bytes(workspaces), then, partial(empty_trash, tuple(workspaces)))
    for run_dir in run_dirs_of(workspaces):
        older = list_backups(run_dir)[:-1]
        if older and holder_of(run_dir) is None:
            name = f"{count(len(older), 'older backup')} of {run_dir.name}"
            size = sum(size_of(backup.path) for backup in older)
            yield Deletable(name, size, "Its newest backup stays.", partial(remove_older, run_dir, keep=1))


def _caches(config: Config) -> Iterator[Deletable]:
    files = [f for name in _CACHES for f in entry_files(from_root(config.general.cache_dir) / name)]
    name = f"Cache of images and captions in {config.general.cache_dir}"
    then = "The next run encodes its images and captions again."
    yield Deletable(name, sum(file.stat().st_size for file in files), then, partial(_remove_files, files))


def _downloads(config: Config) -> Iterator[Deletable]:
    folder = hub_cache_dir(config)
    for prefix, what in _OF_HUB.items():
        for place in sorted(folder.glob(f"{prefix}--*")):
            if not (place / "blobs").is_dir():  # not of the hub: the config names the folder
                continue
            name = place.name.removeprefix(f"{prefix}--").replace("--", "/")
            is_used = name == config.model.base_model.strip()
            then = "This config uses it. " if is_used else "Other programs may use it. "
            label = f"Downloaded {what} {name}"
            yield Deletable(
                label, size_of(place), f"{then}It is downloaded again when needed.", partial(remove_folder, place)
            )


def _remove_files(files: Sequence[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _describe_free(config: Config) -> str:
    """Return the free space of each disk that a run writes to."""
    places = {
        "runs": from_root(config.general.workspace_dir),
        "caches": from_root(config.general.cache_dir),
        "the result": from_root(config.output.destination),
        "downloads": hub_cache_dir(config),
    }
    by_disk: dict[int | None, list[str]] = {}
    for name, place in places.items():
        by_disk.setdefault(file_system_of(place), []).append(name)
    parts = []
    for names in by_disk.values():
        free = free_bytes(places[names[0]])
        on_disk = "" if len(by_disk) == 1 else f" on the disk of {' and '.join(names)}"
        parts += [f"{format_size(free)}{on_disk}"] if free is not None else []
    return f"Free: {', '.join(parts)}." if parts else ""


_COLUMNS = (
    Column("#0", "What", 330, is_stretched=True),
    Column("size", "Size", 90, anchor="e"),
    Column("then", "When it is deleted", 350, is_fitted=True),
)


class SpaceWindow(Window):
    """Lists what can be deleted; nothing goes without a question."""

    is_single = True

    def __init__(self, context: Context) -> None:
        super().__init__(context.root, context.theme, "Free space")
        self._context = context
        self.items: tuple[Deletable, ...] = ()
        self._looking: Job | None = None
        pad = context.theme.px(PAD)
        self.status = WrappedText(self, context.theme, "Reading the sizes of folders…", colour="label")
        self.status.pack(fill="x", padx=pad, pady=(pad, context.theme.px(GAP)))
        footer = Panel(self, context.theme)
        footer.pack(side="bottom", fill="x", padx=pad, pady=pad)
        self.delete_button = Button(footer, context.theme, "Delete…", self.ask, width=110)
        self.delete_button.pack(side="right")
        Button(footer, context.theme, "Close", self.close, width=92).pack(side="right", padx=(0, GAP))
        self.table = Table(self, context.theme, _COLUMNS)
        self.table.pack(fill="both", expand=True, padx=pad)
        self.table.on_events({"<<TreeviewSelect>>": self._follow_selection, "<Delete>": self.ask})
        self._follow_selection()
        self.look()
        self.appear(820, 460)

    def look(self) -> None:
        """Read what can be deleted, in the background."""
        config, places = self._context.form.config, self._context.workspaces()
        cancel(self._looking)
        self._looking = self._context.pump.background.run(partial(find_space, config, places), self._show)

    def ask(self) -> None:
        """Ask, then delete what is selected."""
        items = [self.items[n] for n in self.table.selected]
        if not items:
            return
        size = format_size(sum(item.size_bytes for item in items))
        answers = (Answer("cancel", "Cancel", is_default=True), Answer("delete", "Delete"))
        message = describe_deletion(items)
        if self._context.interaction.choose(f"Delete {size}?", message, answers, "warning") == "delete":
            work = partial(delete, items, self._context.workspaces())
            self._context.pump.background.run(work, self._report, self._fail)

    def _show(self, space: Space) -> None:
        if not self.winfo_exists():
            return
        self.items = space.items
        nothing = "" if space.items else " Darkroom has nothing that can be deleted."
        self.status.set_text(f"{space.free}{nothing}")
        self.table.set_rows([(i.name, (format_size(i.size_bytes), i.then), "") for i in space.items])
        self._follow_selection()

    def _report(self, size_bytes: int) -> None:
        self._context.notify(f"Deleted {format_size(size_bytes)}.")
        self._context.starter.look_for_backup()
        if self.winfo_exists():
            self.look()

    def _fail(self, error: Exception) -> None:
        self._context.show_error("Not everything was deleted", error, advice="Check its permissions.")
        if self.winfo_exists():
            self.look()

    def _follow_selection(self) -> None:
        self.delete_button.set_enabled(bool(self.table.selected))
