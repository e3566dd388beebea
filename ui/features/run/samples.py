"""The samples of a run in the grid, with their stars, and what can be done with one."""

from __future__ import annotations

import json
import tkinter as tk
from collections import defaultdict
from collections.abc import Collection
from functools import partial
from pathlib import Path

from modules.system.atomic import write_text
from ui.features.run.sample_grid import Place, SampleGrid, SampleTable
from ui.features.run.sample_viewer import SampleViewer
from ui.features.run.step_model import save_step_model
from ui.forms.context import Context
from ui.loop.background import OrderedWrites
from ui.loop.run_state import RunState

_NO_SAMPLES = "Samples of your prompts appear here while the run trains."


class RunSamples(SampleGrid):
    """Call `follow` with the state of the run."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(
            master,
            context.theme,
            context.pump,
            empty_text=_NO_SAMPLES,
            on_open=self.open,
            on_star=self._star_at,
        )
        self.viewer: SampleViewer | None = None
        self._context = context
        self._run_dir: Path | None = None
        self._samples: tuple[object, ...] = ()
        self._state = RunState()
        self._writes = defaultdict[Path, OrderedWrites](OrderedWrites)  # of the stars of each run

    def follow(self, state: RunState) -> None:
        """Show the samples of a run."""
        self._state = state
        run_dir = Path(state.started.run_dir) if state.started else None
        if run_dir != self._run_dir:
            self._run_dir = run_dir
            self.starred = frozenset()
            if run_dir is not None:
                self._context.pump.background.run(partial(read_stars, run_dir), partial(self._keep_stars, run_dir))
        if state.samples is not self._samples:
            self._samples = state.samples
            self.show(SampleTable(state.samples), self.starred)
            self._update_viewer()

    def open(self, place: Place) -> None:
        """Show a sample large."""
        if self.viewer is not None and self.viewer.winfo_exists():
            self.viewer.destroy()
        self.viewer = SampleViewer(
            self._context,
            self.table,
            place,
            self.starred,
            on_star=self.toggle_star,
            on_save=lambda step: save_step_model(self._context, self._state, step),
        )

    def toggle_star(self, path: Path) -> None:
        """Star a sample, or remove its star; kept in the run's folder."""
        self.starred = frozenset(self.starred) ^ {path}
        self.draw()
        self._update_viewer()
        if (run_dir := self._run_dir) is not None:
            names = {name_of(p, run_dir) for p in self.starred}
            write = self._writes[run_dir].following(partial(write_stars, run_dir, names))
            self._context.pump.background.run(write, lambda _done: None, self._report_failure)

    def _star_at(self, place: Place) -> None:
        sample = self.table.at(*place)
        if sample is not None:
            self.toggle_star(Path(sample.path))

    def _keep_stars(self, run_dir: Path, names: frozenset[str]) -> None:
        if run_dir == self._run_dir and self.winfo_exists():
            self.starred = frozenset(self.starred) | {run_dir / name for name in names}
            self.draw()
            self._update_viewer()

    def _report_failure(self, error: Exception) -> None:
        self._context.notify(f"The star could not be kept: {error}")

    def _update_viewer(self) -> None:
        if self.viewer is not None and self.viewer.winfo_exists():
            self.viewer.update_samples(self.table, self.starred)


STARS_FILE = "starred.json"


def read_stars(run_dir: Path) -> frozenset[str]:
    """Return the starred samples of a run; none if there is no readable file."""
    try:
        data = json.loads((run_dir / STARS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return frozenset()
    return frozenset(name for name in data if isinstance(name, str)) if isinstance(data, list) else frozenset()


def write_stars(run_dir: Path, stars: Collection[str]) -> None:
    """Write the starred samples of a run, atomically. Raises OSError."""
    write_text(run_dir / STARS_FILE, json.dumps(sorted(stars), indent=1) + "\n")


def name_of(path: Path, run_dir: Path) -> str:
    """Return the name of a sample in the file: its path below the run's folder, or all of it if it is elsewhere."""
    return path.relative_to(run_dir).as_posix() if path.is_relative_to(run_dir) else path.as_posix()
