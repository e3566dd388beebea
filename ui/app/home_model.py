"""Home as text: the config in the window and what can be done with it, the newest runs, and this computer."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from modules.config.records import record_at
from modules.config.schema import Config
from modules.config.usage import method_of, missing_data
from modules.system.problem import count
from trainer.wording import PHASE_LABELS
from ui.features.run.model import Starter
from ui.forms.context import Context
from ui.forms.findings import locate
from ui.forms.setting_pages import SIMPLE
from ui.loop.background import Background, Job, cancel
from ui.loop.signal import Signal
from ui.loop.wording import format_duration

if TYPE_CHECKING:
    from trainer.preflight.machine import Machine
    from trainer.run_folder.records import RunRecord
    from ui.app.recent_runs import Stamps
    from ui.loop.run_state import RunState

_MAX_NOTES_CHARS = 220
_GB = 1e9


class CardButton(NamedTuple):
    """A button: its label, and the action that it runs or the path of the setting that it shows."""

    label: str
    action: str = ""
    path: str = ""


class Work(NamedTuple):
    """The config in the window: its name, what it trains, its notes, whether it is ready, and what comes next.

    `what` has a line for the training and one for its material. `colour` is the token of the state; the first of the
    buttons, if there are some, is the main one.
    """

    title: str
    what: tuple[str, ...]
    notes: str
    state: str
    colour: str
    buttons: tuple[CardButton, ...]


def work_of(context: Context, starter: Starter) -> Work:
    """Return the work that goes with the state of the window."""
    form, session = context.form, context.session
    if session.is_active:
        config = session.config or form.config
        started = session.state.started
        title = Path(started.run_dir).name if started is not None else form.source.name
        watch = (CardButton("Open the run", action="page_run"),)
        return Work(title, describe_training(config), "", describe_progress(session.state), "good", watch)
    state, colour, first = _readiness(context, starter)
    buttons = [] if first.action == "start" else [first]  # Start is in the bottom bar
    backup = starter.resumable
    if starter.can_resume and backup is not None:
        buttons.append(CardButton(f"Resume at step {backup.step:,}", action="resume"))
    title = form.source.name + (", edited" if form.is_changed else "")
    notes, *rest = textwrap.wrap(" ".join(form.config.general.notes.split()), _MAX_NOTES_CHARS) or [""]
    notes = f"{notes}…" if rest else notes
    return Work(title, describe_training(form.config), notes, state, colour, tuple(buttons))


_MISSING: Mapping[str, str] = {
    "images": "No images yet: add the folders that hold them.",
    "pairs": "No pairs of images yet: add their folder on the Concepts page.",
    "prompts": "No prompts yet: add folders with captions, or a file with a prompt per line, on the Concepts page.",
}


def _readiness(context: Context, starter: Starter) -> tuple[str, str, CardButton]:
    """Return whether the config can be started, the colour of this sentence, and the button that comes first."""
    form, faulty = context.form, context.field_problems.errors
    drafts = [path for path in form.drafts if path not in faulty]
    if faulty or drafts:
        paths = [*drafts, *faulty]
        places = [locate(p, form.config).place for p in context.field_problems.problems if p.path == paths[0]]
        where = f" The first: {places[0]}." if places else ""
        needs = "needs" if len(paths) == 1 else "need"
        text = f"{count(len(paths), 'setting')} {needs} a correction before a run can start.{where}"
        return text, "error", CardButton("Show it" if len(paths) == 1 else "Show the first", path=paths[0])
    if (missing := missing_data(form.config)) is not None:
        page = SIMPLE if context.preferences.now.is_simple else "concepts"
        return _MISSING[missing], "warning", CardButton(f"Add {missing}", action=f"page_{page}")
    start = CardButton("Start", action="start")
    if starter.why_not:
        return starter.why_not, "label", CardButton("Open the run", action="page_run")
    report = starter.current_report
    if report is None:
        return "No setting has an error. Start checks the images and the memory, then trains.", "label", start
    if number := len(report.errors):
        return f"The last check found {count(number, 'error')}. Start lists what it found.", "error", start
    preview = report.preview
    length = f": {count(preview.total_steps, 'step')}" if preview is not None and preview.total_steps else ""
    return f"Ready{length}.", "good", start


def describe_training(config: Config) -> tuple[str, ...]:
    """Describe the training of a config in two lines: its target and length, and its model and images."""
    record = record_at(config, "training.trains")
    target = record.choices[config.training.trains] if record is not None else ""
    method = method_of(config).label if config.training.trains != "vae" else ""
    names = [c.label for c in config.concepts if c.enabled]
    model = f"Base model: {config.model.base_model}" if config.model.base_model else "No base model"
    lines = (
        (f"{target} for {config.family.label}", method, count(config.training.epochs, "epoch")),
        (model, f"Concepts: {', '.join(names)}" if names else ""),
    )
    return tuple("  ·  ".join(filter(None, parts)) for parts in lines)


def describe_progress(state: RunState) -> str:
    """Return how far a run is, as a line."""
    phase = PHASE_LABELS.get(state.phase, state.phase)
    step = f": step {state.step.step:,} of {state.step.total_steps:,}" if state.step is not None else ""
    left = f", {format_duration(state.seconds_left)} left" if state.seconds_left is not None else ""
    return f"{phase}{step}{left}"


def machine_rows(machine: Machine) -> tuple[tuple[str, str], ...]:
    """Return the hardware that matters for training, each with its label."""
    gpu = "none" if machine.gpu is None else f"{machine.card_gb} GB, {machine.gpu.free_bytes / _GB:.0f} GB free"
    rows = [("GPU", gpu)]
    if machine.gpu is None:
        rows.append(("Processor", count(machine.num_cores, "core")))
    rows.append(("Memory", f"{machine.memory_bytes / _GB:,.0f} GB"))
    if machine.disk_bytes is not None:
        rows.append(("Disk", f"{machine.disk_bytes / _GB:,.0f} GB free for models"))
    return tuple(rows)


def why_no_gpu(machine: Machine) -> str:
    """Return why the GPU is not used; empty if it is used, or if there is no GPU."""
    return "" if machine.gpu is not None or machine.why_no_gpu == "No GPU was found." else machine.why_no_gpu


class RecentRuns:
    """The records of the newest runs of some workspaces, None until they are read; `changed` when they differ."""

    def __init__(self, background: Background) -> None:
        self.records: tuple[RunRecord, ...] | None = None
        self.changed: Signal[[]] = Signal()
        self._background = background
        self._stamps: Stamps = {}
        self._job: Job | None = None

    def refresh(self, workspaces: Sequence[Path]) -> None:
        """Read the runs that are new or have changed."""
        cancel(self._job)
        known = {record.run_dir: record for record in self.records or ()}
        stamps, places = dict(self._stamps), tuple(workspaces)
        self._job = self._background.run(lambda: _read(places, known, stamps), self._keep)

    def _keep(self, result: tuple[tuple[RunRecord, ...], Stamps]) -> None:
        self._job = None
        records, self._stamps = result
        if records != self.records:
            self.records = records
            self.changed()


def _read(
    workspaces: Sequence[Path], known: Mapping[Path, RunRecord], stamps: Stamps
) -> tuple[tuple[RunRecord, ...], Stamps]:
    from ui.app.recent_runs import read_newest  # by the thread: the window starts without it

    return read_newest(workspaces, known, stamps)
