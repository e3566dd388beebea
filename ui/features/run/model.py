"""From pressing Start to a running training: check, list errors, confirm warnings, launch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.codec import LoadedConfig, load_file
from modules.config.compare import fixed_on_resume, resumed_config
from modules.config.schema import Config
from modules.settings.edit import replace_value
from modules.system.file_errors import plain_reason
from modules.system.paths import from_root
from modules.system.problem import Problem, errors_in, shorten
from ui.features.run.questions import (
    ask_for_addresses,
    ask_for_code,
    ask_more_epochs,
    keep_or_replace,
    may_restore,
    may_start_from_weights,
)
from ui.forms.findings import CANNOT_START, Findings
from ui.forms.model import Document, FormModel, Source
from ui.loop.background import Job, cancel
from ui.loop.interaction import BEFORE_RESUMING, BEFORE_START, Failure, Interaction
from ui.loop.pump import Pump
from ui.loop.run_session import Launch, RunSession
from ui.loop.signal import Signal

if TYPE_CHECKING:  # the window needs these when a run begins
    from trainer.launch import RequestKind, RunRequest
    from trainer.preflight import Report
    from trainer.run_folder.backup import BackupInfo
    from trainer.run_folder.fork import ForkSource
    from ui.loop.run_state import RunState

QUEUE_RUNS, RUN_IN_PROGRESS = "The queue is running.", "A run is in progress."  # why no run can start
CHECKING = "The settings and images are being checked."
_log = logging.getLogger(__name__)
_NO_EARLY_END: Mapping[str, object] = {
    "validation.early_stopping_patience": 0,
    "reward.early_stopping_patience": 0,
    "reward.stop_at_reward": None,
    "reward.min_diversity": None,
    "reward.max_kl": None,
}
_OF_MACHINE = ("general.", "multi_gpu.", "training.attention", "model.compile")


class Starter:
    """Starts and resumes runs; keeps the preview of a start and the newest backup."""

    def __init__(
        self,
        form: FormModel,
        session: RunSession,
        pump: Pump,
        interaction: Interaction,
        findings: Findings,
        *,
        before_start: Callable[[], None],
        machine: Callable[[], str] = lambda: "",
        machine_note: Callable[[], str] = lambda: "",
    ) -> None:
        """`machine` returns the name of the machine that a new run trains on, and `machine_note` a sentence about it.

        Both are empty for this one.
        """
        self.report: Report | None = None
        self._report_of: Config | None = None
        self.resumable: BackupInfo | None = None  # of a run that has not finished
        self.fork_from: ForkSource | None = None  # the next start is a new run from this
        self._fork_document: Document | None = None  # its settings, as they were loaded
        self._form = form
        self._session = session
        self._pump = pump
        self._interaction = interaction
        self._findings = findings
        self._before_start = before_start
        self._machine, self._machine_note = machine, machine_note
        self.changed: Signal[[]] = Signal()  # the report, or the backup to resume
        self.offer_wanted: Signal[[str]] = Signal()  # the user took an offer instead of starting: its action
        self._checked_config: Config | None = None
        self._preview_job: Job | None = None
        self._backup_job: Job | None = None
        self._last_reason = ""
        self._was_fork_trained = False
        self._comparing: BackupInfo | None = None  # its images are being compared
        session.changed.subscribe(self._follow_session)
        form.changed.subscribe(self._follow_form)

    @property
    def can_start(self) -> bool:
        """Whether a run can be started."""
        return self._session.stage == "idle" and not self._session.is_reserved and not self._form.awaited

    @property
    def why_not(self) -> str:
        """Why no run can be started now; empty if one can."""
        if self.can_start:
            return ""
        if self._session.is_reserved:
            return QUEUE_RUNS
        if self._session.stage == "idle":
            return f"Wait until {self._form.awaited} is loaded."
        return CHECKING if self._session.stage == "checking" else RUN_IN_PROGRESS

    @property
    def machine_note(self) -> str:
        """Where a new run trains and what that costs, as a sentence; empty for this computer, where forks train."""
        return "" if self.fork_from is not None else self._machine_note()

    @property
    def can_resume(self) -> bool:
        """Whether an earlier run can be resumed."""
        return self.can_start and self.resumable is not None

    @property
    def is_fork_trained(self) -> bool:
        """Whether the prepared fork continues a run that has already trained all epochs that are set."""
        backup = self.fork_from.backup if self.fork_from is not None else None
        return backup is not None and backup.epoch >= self._form.config.training.epochs

    def start(self) -> None:
        """Check the config in the background and start a new run if there are no errors and the user agrees."""
        backup = self.fork_from.backup if self.fork_from is not None else None
        if backup is not None:
            self._load_config_of(backup, partial(self._fork_with, backup), now=self._form.config)
        else:
            self._check_then("train")

    def resume(self) -> None:
        """Resume from the newest backup of the workspace, with the settings of its run."""
        backup = self.resumable
        if backup is not None and self.can_start:
            self._load_config_of(backup, partial(self._resume_with, backup), now=self._form.config)

    def resume_run(self, backup: BackupInfo) -> None:
        """Resume a run from one of its backups: its settings replace the form's, which can be undone."""
        if not self._is_refused():
            self._load_config_of(backup, partial(self._resume_as_it_was, backup))

    def ask_longer(
        self, backup: BackupInfo, epochs: int, result: str, notify: Callable[[str], object], *, stopped_early: bool
    ) -> None:
        """Ask for a number of epochs, and resume a run from its last backup for so many more than it has trained."""
        more = ask_more_epochs(self._interaction, backup, epochs, result, stopped_early=stopped_early)
        if more is not None and not (more.isdecimal() and int(more)):
            notify(f"{shorten(more, max_chars=20) or 'Nothing'} is not a number of epochs.")
        elif more is not None:
            self.train_longer(backup, epochs + int(more), stopped_early=stopped_early)

    def train_longer(self, backup: BackupInfo, epochs: int, *, stopped_early: bool = False) -> None:
        """Resume a run that has finished from its last backup, until it has trained a number of epochs in total.

        If it was `stopped_early`, what can end a run early is switched off: it would end this one at once.
        """
        if not self._is_refused():
            edits = {"training.epochs": epochs, **(_NO_EARLY_END if stopped_early else {})}
            self._load_config_of(backup, partial(self._resume_as_it_was, backup, edits=edits))

    def compare_images(self, backup: BackupInfo) -> None:
        """Report on the images of a run with the model of one of its backups; the run and the form stay as they are."""
        self._load_config_of(backup, partial(self._compare_images_with, backup))

    def prepare_fork(self, source: ForkSource, config: Config) -> None:
        """Load the settings of a fork, which can be undone. The next start begins it, with later changes."""
        self._form.load(config, Source(Path(config.output.destination).stem))
        self._fork_document = self._form.document
        self.fork_from = source
        self._was_fork_trained = self.is_fork_trained
        self.changed()

    def cancel_fork(self) -> None:
        """Let the next start be a new run. The config before comes back, unless the fork's was edited."""
        source, loaded = self.fork_from, self._fork_document
        self._end_fork()
        if source is None or loaded is None:
            return
        if self._form.document is loaded:
            self._form.undo()
        elif self._form.source == loaded.source:
            self._form.rename_source(Source(source.run_dir.name))

    def _end_fork(self) -> None:
        self.fork_from = self._fork_document = None
        self.changed()

    @property
    def current_report(self) -> Report | None:
        """The report of the last check, if the settings are still those that were checked."""
        return self.report if self._report_of == self._form.config else None

    def known_steps(self, config: Config) -> int:
        """Return how many steps a run of a config has; 0 unless the last check was of a run of the same length."""
        if self.report is None or self.report.preview is None or self._report_of is None:
            return 0
        is_same = _length_of(config) == _length_of(self._report_of)
        return self.report.preview.total_steps if is_same else 0

    def refresh_preview(self) -> None:
        """Update the preview in the background, unless it is current."""
        config = self._form.config
        if config == self._checked_config:
            return
        self._checked_config = config
        cancel(self._preview_job)
        self._preview_job = self._pump.lasting.run_reporting(
            lambda report: self._session.check_now(config, report),
            partial(self._keep_report, config),
            self._fail_preview,
        )

    def _fail_preview(self, error: Exception) -> None:
        self._checked_config = None  # tried again at the next preview: a disk may have been away
        _log.error("The settings could not be checked for the preview", exc_info=error)

    def check_again(self) -> None:
        """Count the images and captions anew at the next preview: their files have changed."""
        self._checked_config = None
        self.changed()

    def look_for_backup(self) -> None:
        """Search in the background for a run to resume in the workspace."""
        workspace = from_root(self._form.config.general.workspace_dir)
        cancel(self._backup_job)
        started = self._session.started
        shown = Path(started.run_dir) if started is not None else None
        self._backup_job = self._pump.lasting.run(lambda: _resumable_in(workspace, shown), self._keep_backup)

    def _load_config_of(
        self, backup: BackupInfo, done: Callable[[LoadedConfig | None], None], *, now: Config | None = None
    ) -> None:
        """Read the config of a backup's run. What was moved since has the place that it has in the config `now`."""
        self._pump.lasting.run(partial(_config_of_backup, backup, now), done)

    def _compare_images_with(self, backup: BackupInfo, loaded: LoadedConfig | None) -> None:
        from trainer.child.run import launch_as_set
        from trainer.launch import RunRequest

        if loaded is None or self._is_refused():
            return
        config = replace_value(loaded.config, "general.tensorboard", False)
        ask_for_code(self._interaction, config)
        self._before_start()
        # Not in a process that outlives the window: that one is followed by the run's log, which a report leaves alone.
        if self._begin(RunRequest(config, "report", backup.path), launch_run=launch_as_set):
            self._comparing = backup

    def _show_compared(self, run_dir: Path) -> None:
        """Show the run whose images were compared as it was, with the report on them."""
        from trainer.run_folder.records import config_of
        from ui.loop.past_runs import read_past_state

        reported, of_report = self._session.state.image_report, self._session.config

        def show(run: tuple[RunState, Config | None]) -> None:
            state, config = run
            if self._session.stage == "idle" and self._session.config is of_report:  # else another run is shown
                self._session.show_past(replace(state, image_report=reported), config)

        self._pump.lasting.run(lambda: (read_past_state(run_dir), config_of(run_dir)), show)

    def _resume_as_it_was(
        self, backup: BackupInfo, loaded: LoadedConfig | None, *, edits: Mapping[str, object] | None = None
    ) -> None:
        if self._is_refused():
            return
        if loaded is not None:
            self._form.load(loaded.config, Source(backup.run_dir.name))
        for path, value in (edits or {}).items():
            self._form.edit(path, value)
        self._check_then("resume", backup)

    def _fork_with(self, backup: BackupInfo, loaded: LoadedConfig | None) -> None:
        """Start a fork: with the state of the run, or, if settings changed that its state depends on, its weights."""
        from trainer.preflight.moved_inputs import with_moved_base
        from trainer.run_folder.fork import weights_do_not_fit

        now = self._form.config
        before = with_moved_base(loaded.config, now) if loaded else now
        if misfits := weights_do_not_fit(before, now):
            message = f"The weights of {backup.run_dir.name} were trained with another setting."
            advice = "Set it back to start from these weights, or cancel the fork to start without them."
            problems = [Problem(path, message, advice=advice) for path in misfits]
            self._findings.show("Cannot start from this backup", problems, now)
            return
        changed = fixed_on_resume(before, now)
        if changed and not may_start_from_weights(self._interaction, backup, before, now, changed):
            return
        self._check_then("fork_weights" if changed else "fork", backup)

    def _resume_with(self, backup: BackupInfo, loaded: LoadedConfig | None) -> None:
        now = self._form.config
        changed = fixed_on_resume(loaded.config, now) if loaded else []
        if loaded and changed:
            if not may_restore(self._interaction, loaded.config, now, changed):
                return
            self._form.replace(resumed_config(loaded.config, now))
        self._check_then("resume", backup)

    def _is_refused(self) -> bool:
        """Return whether no run can start now, which is reported: one has begun while a question was open."""
        reason = self.why_not
        if reason:
            problem = Problem("", reason, advice="Start again after that.")
            self._findings.show(CANNOT_START, [problem], self._form.config)
        return bool(reason)

    def _follow_form(self) -> None:
        """Drop the report on another model, and report whether the prepared fork has something left to train now."""
        of, now = self._report_of, self._form.config
        if self.report is not None and of is not None and _model_of(of) != _model_of(now):
            self.report = self._checked_config = None  # the former settings are checked again if they come back
            self.changed()
        if self.fork_from is not None and self._was_fork_trained != self.is_fork_trained:
            self._was_fork_trained = self.is_fork_trained
            self.changed()

    def _follow_session(self) -> None:
        """Report that runs can start now, or no more, and why."""
        if self._last_reason != self.why_not:
            self._last_reason = self.why_not
            self.changed()
        if self._session.stage == "idle" and (backup := self._comparing) is not None:
            self._comparing = None
            self._show_compared(backup.run_dir)

    def _check_then(self, kind: RequestKind, backup: BackupInfo | None = None) -> None:
        """Check a request of the current settings, which continues from a backup if one is given; then start it."""
        from trainer.launch import RunRequest

        if self._is_refused():
            return
        on = self._machine() if kind == "train" else ""
        request = RunRequest(self._form.config, kind, backup.path if backup is not None else None, on=on)
        ask_for_code(self._interaction, request.config)
        ask_for_addresses(self._interaction, request.config)
        self._findings.dismiss()
        self._session.check(request, lambda report: self._handle_report(request, report), self._check_failed)

    def _handle_report(self, request: RunRequest, report: Report) -> None:
        cancel(self._preview_job)  # of earlier settings: it would replace this report, and not be repeated
        self._checked_config = request.config
        self._keep_report(request.config, report)
        problems = [*self._form.problems(), *(p for p in report.problems if not request.on or _is_of_files(p))]
        if errors_in(problems):
            self._findings.show(CANNOT_START, problems, self._form.config)
            return
        existing = next((p for p in report.problems if p.remedy == "destination"), None)
        warnings = [p for p in problems if p.severity == "warning" and p is not existing]
        resumes = request.kind == "resume"
        title = BEFORE_RESUMING if resumes else BEFORE_START
        answer = self._interaction.confirm_start(warnings, report.preview, resumes=resumes) if warnings else True
        if answer is not True:
            self._findings.show(title, problems, self._form.config)
            if isinstance(answer, str):
                self.offer_wanted(answer)
            return
        choice = "keep" if existing is None else keep_or_replace(self._interaction, existing)
        if choice is None:
            self._findings.show(title, problems, self._form.config)
            return
        if self._is_refused():
            return
        self._before_start()
        is_begun = self._begin(replace(request, datasets=report.datasets, replaces=choice == "replace"))
        if is_begun and self.fork_from is not None and request.kind != "resume":
            self._end_fork()

    def _begin(self, request: RunRequest, *, launch_run: Launch | None = None) -> bool:
        """Begin a run; return whether its process could be started, else show why not."""
        try:
            self._session.begin(request, launch_run=launch_run)
        except OSError as error:
            message = f"The process that was to train could not be started: {plain_reason(error)}."
            failure = Failure("The run was not started", message, "Check the disk of the logs, and try it again.")
            self._interaction.show_failure(failure)
            return False
        return True

    def _check_failed(self, error: Exception) -> None:
        message = f"The check failed: {plain_reason(error)}."
        self._findings.show(
            CANNOT_START, [Problem("", message, advice="The window's log has the details.")], self._form.config
        )
        self._interaction.show_failure(Failure("The check failed", message, "Please report this."))

    def _keep_report(self, config: Config, report: Report) -> None:
        self._report_of = config
        self.report = replace(report, datasets=None)  # not kept: large data sets take much memory
        self.changed()

    def _keep_backup(self, backup: BackupInfo | None) -> None:
        self.resumable = backup
        self.changed()


def _resumable_in(workspace: Path, shown: Path | None) -> BackupInfo | None:
    """Return the newest backup of a workspace, unless its run has finished or another process trains it.

    None while the window shows a run of another machine, where that is resumed: next to its end, an earlier run of this
    machine would be taken for it.
    """
    from trainer.run_folder.backup import newest_resumable
    from trainer.run_folder.elsewhere import elsewhere_of
    from trainer.run_folder.event_log import has_finished
    from trainer.run_folder.run_lock import holder_of

    backup = newest_resumable(workspace)
    if backup is None or has_finished(backup.run_dir):
        return None
    if shown is not None and shown != backup.run_dir and elsewhere_of(shown) is not None:
        return None
    holder = holder_of(backup.run_dir)
    return backup if holder is None or holder.is_this_process else None


def _config_of_backup(backup: BackupInfo, now: Config | None) -> LoadedConfig | None:
    from trainer.preflight.moved_inputs import at_new_places

    file = backup.path / "config.json"
    if not file.is_file():
        return None
    loaded = load_file(file)
    return loaded if now is None else replace(loaded, config=at_new_places(loaded.config, now))


def _is_of_files(problem: Problem) -> bool:
    """Return whether a problem is one of what a run reads, not of this machine: memory, disk, devices, packages."""
    if problem.path.startswith("reward.models.") and problem.path.endswith(".address"):
        return False  # "localhost" is the other machine, which checks its own servers and whether each is approved
    return problem.remedy not in ("memory", "space", "packages") and not problem.path.startswith(_OF_MACHINE)


def _model_of(config: Config) -> tuple[str, ...]:
    """Return what is trained; a report on anything else has no figure that holds."""
    return config.model.family.name, config.model.base_model, config.training.trains


def _length_of(config: Config) -> tuple[object, ...]:
    """Return the settings that the number of steps depends on."""
    training = config.training
    steps = (training.epochs, training.batch_size, training.accumulation_steps)
    return (*steps, training.method, config.data, config.concepts, config.validation)
