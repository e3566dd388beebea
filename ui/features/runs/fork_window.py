"""The window that prepares a fork: from which backup or saved model of a run it starts, and the name of its result."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from modules.config.codec import load_file
from modules.config.records import record_at
from modules.config.schema import Config
from modules.settings.edit import replace_value
from modules.system.errors import DarkroomError
from modules.system.paths import as_config_path, safe_name
from trainer.jobs.checkpoint_files import checkpoints_of
from trainer.run_folder.backup import list_backups
from trainer.run_folder.destination import PATH, stem_of, with_free_number, with_stem
from trainer.run_folder.fork import ForkSource
from trainer.run_folder.records import RunRecord, config_of
from trainer.wording import format_loss
from ui.forms.context import Context
from ui.widgets.dialog import Window
from ui.widgets.entry import Entry
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.table import Column, Table
from ui.widgets.theme import PAD
from ui.widgets.variables import TextVar

_START_FILES = {"adapter": "adapter.start_from", "full": "model.base_model"}
"""The setting that names the model to start from, by what is trained."""


@dataclass(frozen=True, slots=True)
class ForkChoices:
    """The states that forks of a run can start from, newest first; the validation losses by step; the proposed name."""

    sources: tuple[ForkSource, ...]
    losses: dict[int, float]
    name: str


def fork_choices(record: RunRecord) -> ForkChoices:
    """Read what forks of a run can start from: for a background thread.

    Its backups, and the models that it has saved, unless its settings have no place for a model to start from.
    """
    run, run_dir, config = record.title, record.run_dir, config_of(record.run_dir)
    try:
        checkpoints = checkpoints_of(run_dir) if config is not None and _start_setting(config) else []
    except DarkroomError:  # its result is not a model of its own
        checkpoints = []
    models = [ForkSource(run_dir, run, c.step, Path(c.path)) for c in checkpoints if c.path]
    backups = [ForkSource(run_dir, run, b.step, b.path, b) for b in list_backups(run_dir)]
    ordered = sorted([*backups, *models], key=lambda s: (-s.step, s.backup is None, s.path.name))
    losses = {c.step: c.loss for c in checkpoints if c.loss is not None and c.loss_step == c.step}
    return ForkChoices(tuple(ordered), losses, proposed_name(config) if config is not None else "")


def fork_config(source: ForkSource, name: str) -> Config:
    """Return the settings of a fork whose result has a name. Raises DarkroomError if the run's are gone."""
    loaded = load_file(source.path / "config.json").config if source.backup is not None else config_of(source.run_dir)
    if loaded is None:
        raise DarkroomError(f"The settings of {source.run} cannot be read.", advice="Choose a backup to start from.")
    if source.backup is None:
        loaded = replace_value(loaded, _start_setting(loaded), as_config_path(source.path))
    return with_name(loaded, name)


def _start_setting(config: Config) -> str:
    path = _START_FILES.get(config.training.trains, "")
    return path if path and record_at(config, path) is not None else ""


def proposed_name(config: Config) -> str:
    """Return the name of the result with the first number that is free: zog-2 for zog."""
    return stem_of(with_free_number(config).output.destination)


def with_name(config: Config, name: str) -> Config:
    """Return the config with another name of the result, in the same folder and of the same kind."""
    clean = safe_name(name) if name.strip() else proposed_name(config)
    return replace_value(config, PATH, with_stem(config.output.destination, clean))


_COLUMNS = (
    Column("#0", "Start from", 120),
    Column("keeps", "With", 250, is_stretched=True),
    Column("loss", "Validation", 90),
    Column("file", "File", 260, is_fitted=True),
)
_EVERYTHING, _WEIGHTS = "weights and all state", "weights alone, from step 0"
_OF_BACKUP = (
    "The new run continues as {run} did after step {step:,}: optimizer, schedule and order of images are kept. With a "
    "change that these do not allow, such as another batch size, it starts at step 0 from the weights."
)
_OF_MODEL = "The new run begins at step 0, with the weights in {file}."
_NEXT = "Next: change its settings, then press Start."
_NOTHING = "There is neither a backup nor a saved model that a run could start from."


class ForkWindow(Window):
    """Reads what there is in the background. Load settings replaces the form's, which can be undone."""

    def __init__(self, context: Context, record: RunRecord, selected: Path | None = None) -> None:
        super().__init__(context.root, context.theme, f"Fork {record.title}")
        self.choices = ForkChoices((), {}, "")
        self._is_read = False
        self._context, self._record, self._selected = context, record, selected
        px = context.theme.px
        text = f"A new run with a folder of its own. {record.title} stays as it is."
        WrappedText(self, context.theme, text).pack(fill="x", padx=px(PAD), pady=(px(PAD), px(10)))
        footer = self.add_footer("Cancel")
        self.load_button = self.add_main_button("Load its settings", self.load)
        Text(footer, context.theme, _NEXT, colour="muted").pack(side="left")
        row = Panel(self, context.theme)
        row.pack(side="bottom", fill="x", padx=px(PAD), pady=(px(10), 0))
        Text(row, context.theme, "Name of its result").pack(side="left", padx=(0, px(12)))
        self.name = TextVar(master=self)
        self.entry = Entry(row, context.theme, self.name, on="window", width=280)
        self.entry.pack(side="left")
        self.explanation = WrappedText(self, context.theme, colour="label")
        self.explanation.pack(side="bottom", fill="x", padx=px(PAD), pady=(px(10), 0))
        self.table = Table(self, context.theme, _COLUMNS, on="window")
        self.table.pack(fill="both", expand=True, padx=px(PAD))
        self.table.on_events({"<<TreeviewSelect>>": self._explain, "<Double-Button-1>": self.load})
        self.bind("<Return>", lambda _e: self.load())
        self._job = context.pump.background.run(partial(fork_choices, record), self._show)
        self.at_close(lambda: self._job.cancel())
        self._explain()
        self.appear(760, 470)
        self.table.tree.focus_set()

    @property
    def source(self) -> ForkSource | None:
        """The chosen state, which the fork would start from."""
        return next((self.choices.sources[number] for number in self.table.selected), None)

    def load(self) -> None:
        """Load the settings of the fork into the form; the next Start begins it. The window closes."""
        source, context = self.source, self._context
        if source is None:
            return

        def prepare(config: Config) -> None:
            context.starter.prepare_fork(source, config)
            context.navigation.open("training")
            self.close()

        fail = partial(context.show_error, "The fork cannot be prepared")
        self._job = context.pump.background.run(partial(fork_config, source, self.name.get()), prepare, fail)

    def _show(self, choices: ForkChoices) -> None:
        self.choices, self._is_read = choices, True
        self.name.set(choices.name)
        self.table.set_rows([self._row(source) for source in choices.sources])
        paths = [source.path for source in choices.sources]
        number = paths.index(self._selected) if self._selected in paths else 0
        self.table.select([number] if paths else [])
        self._explain()

    def _row(self, source: ForkSource) -> tuple[str, tuple[str, ...], str]:
        loss = self.choices.losses.get(source.step)
        keeps = _WEIGHTS if source.backup is None else _EVERYTHING
        label = source.label
        return (
            f" {label[:1].upper()}{label[1:]}",
            (keeps, format_loss(loss) if loss is not None else "–", source.place),
            "",
        )

    def _explain(self) -> None:
        source = self.source
        self.load_button.set_enabled(source is not None)
        if source is None:
            self.explanation.set_text(_NOTHING if self._is_read else "Reading the run…")
        elif source.backup is not None:
            self.explanation.set_text(_OF_BACKUP.format(run=source.run, step=source.step))
        else:
            self.explanation.set_text(_OF_MODEL.format(file=source.place))
