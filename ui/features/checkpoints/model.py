"""The checkpoints of runs in the window: their images as a table, the job that samples them, the choice of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from modules.settings.field import Section
from modules.system.errors import DarkroomError
from modules.system.paths import as_config_path
from modules.system.problem import count
from trainer.child.process import Spawn, spawn_trainer
from trainer.jobs.checkpoint_files import checkpoints_of, use_checkpoint, with_current_kinds
from trainer.jobs.checkpoints import CHECKPOINTS, score_label
from trainer.jobs.registry import JOBS
from trainer.jobs.sample_sources import config_of_run
from trainer.jobs.spec import validate_settings
from trainer.run_folder.checkpoints import Checkpoint, Column, Comparison, images_dir, read_comparison, score_names
from trainer.run_folder.records import RunRecord, read_record
from trainer.wording import format_loss
from ui.loop.background import Background, Job, cancel
from ui.loop.jobs import JobRunner
from ui.loop.signal import Signal

BUSY = "A run is training. Wait until it has ended, or stop it: both need the whole device."


@dataclass(frozen=True, slots=True)
class Row:
    """A checkpoint of a run; `run_name` is set if there are several runs."""

    run_dir: Path
    checkpoint: Checkpoint
    run_name: str = ""

    @property
    def label(self) -> str:
        """Its name in the table and after a vote."""
        return f"{self.checkpoint.label}, {self.run_name}" if self.run_name else self.checkpoint.label


@dataclass(frozen=True)
class CheckpointTable:
    """Rows are the checkpoints by step, of several runs next to each other; columns are prompts with a seed.

    `names` are the names of the runs, by their folders.
    """

    comparisons: tuple[Comparison, ...] = ()
    names: Mapping[Path, str] = field(default_factory=dict)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The rows in order."""
        several = len(self.comparisons) > 1
        names = {c.run_dir: self.names.get(c.run_dir) or c.run_dir.name for c in self.comparisons if several}
        rows = [Row(c.run_dir, p, names.get(c.run_dir, "")) for c in self.comparisons for p in c.checkpoints]
        return tuple(sorted(rows, key=lambda row: (row.checkpoint.step < 0, row.checkpoint.step)))

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns that any of the runs has, in order."""
        return tuple(dict.fromkeys(column for c in self.comparisons for column in c.columns))

    @cached_property
    def strengths(self) -> tuple[float, ...]:
        """The strengths that were sampled."""
        return tuple(sorted({cell.strength for c in self.comparisons for cell in c.cells}))

    @cached_property
    def _of_run(self) -> dict[Path, Comparison]:
        return {c.run_dir: c for c in self.comparisons}

    @cached_property
    def _images(self) -> dict[tuple[Path, str, Column, float], str]:
        return {
            (c.run_dir, cell.checkpoint, c.columns[cell.column], cell.strength): cell.image
            for c in self.comparisons
            for cell in c.cells
            if cell.column in range(len(c.columns))
        }

    @property
    def num_images(self) -> int:
        """How many images there are."""
        return sum(len(c.cells) for c in self.comparisons)

    def image(self, row: Row, column: Column, strength: float) -> Path | None:
        """Return the image of a row; None if there is none."""
        name = self._images.get((row.run_dir, row.checkpoint.name, column, strength))
        return None if name is None else images_dir(row.run_dir) / name

    def figures(self, strength: float) -> dict[Row, list[tuple[str, bool]]]:
        """Return the figures of each row as text, and whether it is the best one of all rows."""
        names = score_names(self.comparisons)
        means = {row: self._of_run[row.run_dir].means(row.checkpoint.name, strength) for row in self.rows}
        lowest = _best([row.checkpoint.loss for row in self.rows], min)
        highest = {name: _best([m.get(name) for m in means.values()], max) for name in names}
        figures: dict[Row, list[tuple[str, bool]]] = {row: [] for row in self.rows}
        for row, lines in figures.items():
            loss = row.checkpoint.loss
            if loss is not None:
                lines.append((f"Validation {format_loss(loss)}{row.checkpoint.loss_place}", loss == lowest))
            for name, mean in ((name, means[row][name]) for name in names if name in means[row]):
                lines.append((f"{score_label(name)} {mean:.4g}", mean == highest[name]))
        return figures


def _best(values: Iterable[float | None], choose: Callable[[set[float]], float]) -> float | None:
    """Return the best of some values; None if they are all the same."""
    different = {value for value in values if value is not None}
    return choose(different) if len(different) > 1 else None


class CheckpointSession:
    """The comparison of some runs; `changed` is emitted when its images, its job or its message change."""

    def __init__(
        self,
        run_dirs: Sequence[Path],
        background: Background,
        *,
        may_start: Callable[[], bool],
        spawn: Spawn = spawn_trainer,
    ) -> None:
        self.run_dirs = tuple(run_dirs)
        self.table = CheckpointTable()
        self.message, self.is_problem = "Reading the runs…", False
        self.runner = JobRunner(spawn=spawn)
        self.changed: Signal[[]] = Signal()
        self.result_changed: Signal[[]] = Signal()  # of a run
        self._background, self._may_start = background, may_start
        self._reading: Job | None = None
        self._exported: Row | None = None  # to use, once its backup is exported
        self._stage = self.runner.state.stage
        self.runner.changed.subscribe(self._follow)

    def defaults(self) -> Section:
        """Return the settings of a comparison of the runs."""
        return validate_settings(CHECKPOINTS.settings, {"runs": tuple(map(str, self.run_dirs))})

    def look(self) -> None:
        """Read what there is, and count what there is to sample."""
        self._background.run(partial(_look, self.run_dirs), self._show_found, self._show_failure)

    def refresh(self) -> None:
        """Read the images and scores again."""
        cancel(self._reading)
        self._reading = self._background.run(partial(_read, self.run_dirs, self.table.names), self._keep)

    def start(self, settings: Section) -> None:
        """Sample the checkpoints in a child process."""
        try:
            CHECKPOINTS.require_valid(settings)
            if not self._may_start():
                raise DarkroomError(BUSY)
        except DarkroomError as error:
            self._show_failure(error)
            return
        self._set_status("")
        self.runner.start(CHECKPOINTS, settings)

    def use(self, row: Row) -> None:
        """Make a checkpoint the result of its run; a backup of a whole model is exported first."""
        if row.checkpoint.path:
            self._background.run(partial(_use, row), self._show_used, self._show_failure)
            return
        self._background.run(partial(exported_place, row), partial(self._export, row), self._show_failure)

    def _export(self, row: Row, place: Path) -> None:
        export = JOBS["export"]
        values = {"run_path": row.checkpoint.backup, "out": str(place), "overwrite": True}
        self._set_status("")  # a failure of the export is shown in its place
        self._exported = replace(row, checkpoint=replace(row.checkpoint, path=str(place)))
        self.runner.start(export, validate_settings(export.settings, values))

    def close(self) -> None:
        """End the job with the window."""
        self.runner.close()

    def _follow(self) -> None:
        stage, before = self.runner.state.stage, self._stage
        self._stage = stage
        if stage == "finished" != before and (row := self._exported) is not None:
            self._exported = None
            self.use(row)
        elif stage in ("stopped", "failed"):
            self._exported = None
        if stage != before:
            self.refresh()
        self.changed()

    def _show_found(self, result: tuple[CheckpointTable, str]) -> None:
        table, text = result
        self._keep(table)
        notes = dict.fromkeys(note for c in table.comparisons for note in c.notes)
        self._set_status(" ".join(notes) if table.comparisons else text)

    def _keep(self, table: CheckpointTable) -> None:
        self.table = table
        self.changed()

    def _show_used(self, text: str) -> None:
        self._set_status(text)
        self.refresh()
        self.result_changed()

    def _show_failure(self, error: Exception) -> None:
        self._set_status(str(error), is_problem=True)

    def _set_status(self, text: str, *, is_problem: bool = False) -> None:
        self.message, self.is_problem = text, is_problem
        self.changed()


def exported_place(row: Row) -> Path:
    """Return the place of the export of a whole model's backup, next to the saves. Raises DarkroomError."""
    suffix = ".safetensors" if config_of_run(row.run_dir).output.model_format == "single_file" else ""
    return row.run_dir / "save" / f"model-step-{row.checkpoint.step:08d}{suffix}"


def _read(run_dirs: Sequence[Path], names: Mapping[Path, str]) -> CheckpointTable:
    comparisons = (c for c in map(read_comparison, run_dirs) if c is not None)
    return CheckpointTable(tuple(comparisons), names)


def _names_of(run_dirs: Sequence[Path]) -> dict[Path, str]:
    """Return the titles of runs, with the times at which they started where several have the same."""
    records = [read_record(run_dir) for run_dir in run_dirs]
    counts = Counter(record.title for record in records)

    def name_of(record: RunRecord) -> str:
        is_unique = counts[record.title] == 1
        return record.title if is_unique or not record.started else f"{record.title} ({record.started:%Y-%m-%d %H:%M})"

    return {record.run_dir: name_of(record) for record in records}


def _look(run_dirs: Sequence[Path]) -> tuple[CheckpointTable, str]:
    """Return the last comparison of runs, and how many images there are. Raises DarkroomError for another folder."""
    counts = [len(checkpoints_of(run_dir)) for run_dir in run_dirs]
    prompts = [p for p in config_of_run(run_dirs[0]).sampling.prompts if p.enabled]
    text = f"{count(sum(counts), 'checkpoint')} and {count(len(prompts), 'sample prompt')}: "
    text += f"{count(sum(counts) * len(prompts), 'image')} at each strength, for each seed."
    none = f"{count(sum(counts), 'checkpoint')}. The run has no sample prompts: write some above, one a line."
    return _read(run_dirs, _names_of(run_dirs)), text if prompts else none


def _use(row: Row) -> str:
    """Make a checkpoint the result, and return what was done as text. Raises DarkroomError and OSError."""
    used = use_checkpoint(row.run_dir, row.checkpoint)
    if (comparison := read_comparison(row.run_dir)) is not None:
        with_current_kinds(comparison)
    kept = f" The model before is kept as {as_config_path(used.kept)}." if used.kept is not None else ""
    return f"{row.label} is now {as_config_path(used.destination)}.{kept}"
