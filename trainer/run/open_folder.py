"""Opening the folder of a run: the checks of a start from a backup, and the removal of half-written files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from modules.config.codec import load_file
from modules.config.compare import fixed_on_resume
from modules.config.schema import Config
from modules.system.errors import DarkroomError
from modules.system.leftovers import sweep
from modules.system.paths import from_root
from modules.system.problem import Problem, agree, count
from trainer.events import Event, PhaseChanged, RunFinished, WarningRaised
from trainer.launch import RunRequest
from trainer.preflight.moved_inputs import at_new_places, problems_of_inputs, with_moved_base
from trainer.preflight.resume import learning_changes
from trainer.ranks import Ranks
from trainer.run.checkpoint import SavedState, read_state
from trainer.run.setup import Clocks
from trainer.run_folder.backup import BackupInfo, abandoned_by, find_backup, make_newest, verify
from trainer.run_folder.destination import note_destination
from trainer.run_folder.event_log import EventLog, last_event
from trainer.run_folder.fork import fork_into, fork_weights_into, weights_do_not_fit
from trainer.run_folder.result import abandon_results, results_of
from trainer.run_folder.run_dir import new_run_dir
from trainer.run_folder.run_lock import mark_launch

_OF_A_RUN = ("backup", "save")  # where the large files are


def check_resume(config: Config, backup: BackupInfo) -> SavedState:
    """Return the state of a backup. Raises DarkroomError if the config cannot resume from it."""
    verify(backup)
    of_run = load_file(backup.path / "config.json").config
    changed = fixed_on_resume(at_new_places(of_run, config), config)
    if changed:
        raise DarkroomError(
            f"These settings differ from those the run was started with: {', '.join(changed)}.",
            advice="Set them back, or start a new run. Only settings such as epochs, learning rates, samples, "
            "backups and the output destination may change.",
        )
    _require_same_inputs(problems_of_inputs(backup, config))
    return read_state(backup.path)


def check_weights(config: Config, backup: BackupInfo) -> None:
    """Raise DarkroomError if a new run of the config cannot start from the weights of a backup."""
    verify(backup)
    of_run = load_file(backup.path / "config.json").config
    changed = weights_do_not_fit(with_moved_base(of_run, config), config)
    if changed:
        raise DarkroomError(
            f"The weights of {backup.run_dir.name} were trained with other settings: {', '.join(changed)}.",
            advice="Set them back to start from these weights, or start a new run without them.",
        )
    _require_same_inputs(problems_of_inputs(backup, config, only_weights=True))


def _require_same_inputs(problems: Iterable[Problem]) -> None:
    """Raise DarkroomError for the first error among problems."""
    for problem in problems:
        if problem.severity == "error":
            raise DarkroomError(problem.message, advice=problem.advice)


def known_ending(request: RunRequest, backup: BackupInfo, saved: SavedState, ranks: Ranks) -> RunFinished | None:
    """Return the ending of a run that has nothing left to do; None for all others, and for a report on its images."""
    if request.kind == "report":
        return None
    is_fork = request.kind == "fork"
    ending = _ending_if_complete(request.config, backup, saved, is_fork=is_fork) if ranks.rank.is_main else None
    return ranks.from_main(ending)


def _ending_if_complete(config: Config, backup: BackupInfo, saved: SavedState, *, is_fork: bool) -> RunFinished | None:
    """Return the ending of a run with nothing left to do: all epochs are trained and its result is written, too.

    A fork of a run that has trained all its epochs has nothing to do, wherever the result is. None for other runs.
    """
    counters, name = saved.counters, backup.run_dir.name
    if counters.epoch < config.training.epochs:
        return None
    epochs, result = count(counters.epoch, "epoch"), None
    if not is_fork:
        result = _written_result(backup.run_dir, from_root(config.output.destination), step=counters.step)
        if result is None:
            return None
    message = (
        f"The run {name} is already complete after {epochs}: its result is {result}."
        if result is not None
        else f"The run {name} has already trained for {epochs}, so its fork has nothing left to train."
    )
    return RunFinished(
        "already_complete",
        counters.step,
        f"{message} Increase the number of epochs to continue it.",
        str(result or ""),
        str(backup.path),
    )


def _written_result(run_dir: Path, destination: Path, *, step: int) -> Path | None:
    """Return where a run has written its result after a step, if it is still there; None if it has not.

    Runs of versions without the record have written it if that is the last event in their log.
    """
    results = results_of(run_dir)
    for result in reversed(results):
        is_current = result.step == step and not result.is_abandoned
        if is_current and result.destination == destination.absolute() and result.is_unchanged():
            return result.path
    last = None if results else last_event(run_dir)
    if not isinstance(last, RunFinished) or last.step != step or last.outcome == "stopped":
        return None
    places = (destination, run_dir / "save" / destination.name)
    return next((place for place in places if last.model_path == str(place) and place.exists()), None)


def folder_of(
    request: RunRequest,
    backup: BackupInfo | None,
    start_weights: BackupInfo | None,
    log: EventLog,
    clocks: Clocks,
    ranks: Ranks,
    *,
    asked: str,
) -> tuple[Path, BackupInfo | None]:
    """Return the folder of the run and the backup to restore; the main process opens it for writing.

    For a report the folder is left as it is. `asked` is the destination in the config.
    """
    if request.kind == "report" and backup is not None:
        return backup.run_dir, backup
    workspace = from_root(request.config.general.workspace_dir)
    opened = _open_folder(request, backup, start_weights, workspace, log, clocks) if ranks.rank.is_main else None
    if opened is not None:
        note_destination(opened[0], asked=asked, chosen=request.config.output.destination)
    run_dir, path = ranks.from_main(opened) or (workspace, None)
    return run_dir, find_backup(path) if path is not None else None


def _open_folder(
    request: RunRequest,
    backup: BackupInfo | None,
    start_weights: BackupInfo | None,
    workspace: Path,
    log: EventLog,
    clocks: Clocks,
) -> tuple[Path, Path | None]:
    """Open the folder of the run for writing: a new folder, a fork's, or the folder of the run that is resumed.

    Returns it, and the backup to resume from, which a fork has copied.
    """
    is_resumed = backup is not None and request.kind != "fork"
    run_dir = backup.run_dir if backup and is_resumed else new_run_dir(workspace, now=clocks.now())
    if backup and not is_resumed:  # before the log is opened, which continues the copied history
        log.emit(PhaseChanged("starting", f"copying the backup of step {backup.step:,}"))
        backup = fork_into(run_dir, backup)
    log.open(run_dir)
    mark_launch(run_dir)
    if start_weights is not None:
        fork_weights_into(run_dir, start_weights)
        _report_inputs(start_weights, request.config, log, only_weights=True)
    if backup:
        if is_resumed:
            abandon_results(run_dir, after_step=backup.step)
        _report_abandoned(backup, request.config.backup.keep, log)
        _report_inputs(backup, request.config, log)
        _report_changes(backup, request.config, log)
        backup = make_newest(backup, now=clocks.now())
    return run_dir, backup.path if backup else None


def _report_inputs(backup: BackupInfo, config: Config, log: EventLog, *, only_weights: bool = False) -> None:
    """Report what a run reads at another place than the run of the backup, and files that have changed since."""
    for problem in problems_of_inputs(backup, config, only_weights=only_weights):
        log.emit(WarningRaised(problem.message, problem.advice))


def _report_changes(backup: BackupInfo, config: Config, log: EventLog) -> None:
    """Report how the learning rates, their schedule and the weight decay differ from those at the start of the run."""
    of_run = load_file(backup.path / "config.json").config
    changes = list(learning_changes(of_run, config))
    if changes:
        words = "; ".join(f"{path} is {now} (was {before})" for path, before, now in changes)
        log.emit(WarningRaised(f"The run resumes with changed settings: {words}."))


def _report_abandoned(backup: BackupInfo, keep: int, log: EventLog) -> None:
    """Warn about the backups of the branch that this run abandons, and report what happens to them."""
    abandoned = abandoned_by(backup)
    if not abandoned:
        return
    limit = f" (the newest {keep} are kept)" if keep else ""
    log.emit(
        WarningRaised(
            f"The run resumes from step {backup.step} and abandons the branch of these backups: "
            f"{', '.join(b.path.name for b in abandoned)}.",
            f"They stay until newer backups replace them{limit}. Copy them to another folder to keep them.",
        )
    )


def remove_unfinished_files(run_dir: Path, destination: Path, emit: Callable[[Event], None]) -> None:
    """Remove files of killed programs from the run's folder, from other runs of its workspace and next to the result.

    Files that they had moved aside get their names back. Files of programs that still run stay. A warning names the
    changes.
    """
    leftovers = sweep(run_dir, is_recursive=True)
    for other in _folders_in(run_dir.parent):
        for name in _OF_A_RUN:
            leftovers += sweep(other / name)
    leftovers += sweep(destination.parent)
    removed = [leftover for leftover in leftovers if not leftover.is_put_back]
    if removed:
        size = sum(leftover.num_bytes for leftover in removed) / 1e9
        emit(
            WarningRaised(
                f"{count(len(removed), 'unfinished file or folder', 'unfinished files or folders')} of programs that "
                f"were killed while writing {agree(len(removed), 'was')} removed, {size:.2f} GB: "
                f"{', '.join(str(leftover.path) for leftover in removed)}."
            )
        )
    for leftover in leftovers:
        if leftover.is_put_back:
            emit(WarningRaised(leftover.sentence))


def _folders_in(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []
