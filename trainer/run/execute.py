"""Executing a run request from start to end: the engine's entry point.

`trainer/launch.py` imports it by name on the training thread; the command line imports it directly.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from modules.config.schema import Config
from modules.config.sections.general import General
from modules.config.usage import needs_autocast
from modules.data.datasets import Datasets
from modules.data.hub_download import download
from modules.rewards.user_code_file import approved_hashes
from modules.settings.edit import replace_value
from modules.system.devices import Device, resolve_device
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from modules.system.ranks import current_rank
from modules.system.secrets import hub_access
from modules.system.secrets_file import load_secrets
from trainer import preflight
from trainer.commands import CommandDesk, StopRequested
from trainer.data.datasets import scan_watch, still_valid
from trainer.data.hub_datasets import hub_cache_dir, hub_datasets, with_local_folders
from trainer.data.shared_datasets import share_datasets, up_to_date_in_all
from trainer.events import Event, PhaseChanged, RunFinished, WarningRaised
from trainer.launch import RunRequest
from trainer.phases import phase_facts
from trainer.preflight.model import kind_of_model, without_lacking_parts
from trainer.preflight.passes import ESTIMATING
from trainer.preflight.report import Progress, Report
from trainer.ranks import ALONE, LostProcessError, Ranks, connect, lost_process_error
from trainer.run.data import build_loaders, caches_of
from trainer.run.failure import RefusedConfigError, failure_of, not_enough_memory
from trainer.run.machine import Machine, machine_of, name_of, no_spill
from trainer.run.meters import DownloadMeter, MemoryMeter
from trainer.run.model import load_model
from trainer.run.open_folder import check_resume, check_weights, folder_of, known_ending
from trainer.run.processes import require_equal_settings
from trainer.run.prune import kinds_in_use, unused_entries
from trainer.run.recipe import report_changes
from trainer.run.setup import Clocks, RunSetup
from trainer.run.threads import choose_num_threads
from trainer.run.training_run import carry_out, report_images
from trainer.run_folder.backup import BackupInfo, find_backup
from trainer.run_folder.destination import HOW_TO_REPLACE, PATH, chosen_destination, resolved_destination, taken_by
from trainer.run_folder.event_log import EventLog
from trainer.run_folder.inbox import INBOX_FILE, open_inbox
from trainer.run_folder.run_lock import interrupted_run
from trainer.step.failures import is_out_of_memory
from trainer.step.precision import process_settings


def execute_guarded(
    request: RunRequest, *, emit: Callable[[Event], None], desk: CommandDesk, clocks: Clocks | None = None
) -> None:
    """Carry out a request. It always ends with RunFinished or RunFailed; it raises nothing and frees its memory."""
    clocks = clocks or Clocks()
    meter = MemoryMeter(emit, clocks.seconds)
    log = EventLog(meter.emit, clocks.now)
    ranks: Ranks = ALONE
    desk.on_pause = log.report_pause
    try:
        _load_secrets_first(log)
        ranks = _connect_ranks(request.config.general)
        execute(request, log=log, desk=desk, clocks=clocks, on_device=meter.watch, ranks=ranks)
    except StopRequested:
        if ranks.messages_of_others():  # one has failed, and torchrun stops the others
            log.emit(failure_of(lost_process_error(ranks), log.run_dir))
        else:
            ranks.announce_stop()
            log.emit(RunFinished("stopped", 0, "Stopped before the first step."))
    except LostProcessError as error:
        is_stopped = ranks.is_stop_announced(at_once=True)
        log.emit(RunFinished("stopped", 0, "Stopped.") if is_stopped else failure_of(error, log.run_dir))
    except BaseException as error:  # noqa: BLE001 - the outer edge of the training thread
        failed = failure_of(ranks.reason_of(error), log.run_dir)
        ranks.leave_message(failed.message)
        log.emit(failed)
    finally:
        log.close()
        ranks.close()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _connect_ranks(general: General) -> Ranks:
    """Return the processes of the run, which torchrun or SLURM may have started; usually this is the only one."""
    rank = current_rank()
    return ALONE if rank.is_alone else connect(rank, device_type=resolve_device(general.train_device).type)


def execute(
    request: RunRequest,
    *,
    log: EventLog,
    desk: CommandDesk,
    clocks: Clocks,
    on_device: Callable[[Device], None] = lambda device: None,
    ranks: Ranks = ALONE,
) -> None:
    """Carry out a request. Raises DarkroomError for errors the user can fix, StopRequested before the first step.

    `on_device` gets the training device as soon as it is known.
    """
    approved_code, is_main = request.allowed_code | approved_hashes(), ranks.rank.is_main
    require_equal_settings(ranks, request.config)
    request = _resume_after_restart(request, ranks)
    backup = find_backup(request.resume_from) if request.resume_from is not None else None
    if is_main:
        _fetch_datasets(request, log, desk, clocks)
    ranks.from_main(None)  # the others use what it has downloaded
    asked = request.config.output.destination
    request = _with_destination(request, backup, ranks, log)
    run_dir = backup.run_dir if backup else None
    datasets = _check(request, approved_code, log, desk, run_dir=run_dir, ranks=ranks)
    training, devices = request.config.training, request.config.multi_gpu
    machine = machine_of(
        request.config.general,
        training.precision,
        autocast_cache=training.autocast_cache,
        steps_autocast=needs_autocast(request.config),
        ranks=ranks,
        device_indexes=devices.device_indexes if devices.enabled or not ranks.rank.is_alone else "",
    )
    on_device(machine.train_device)
    _report_uneven_devices(machine, log)
    start_weights = backup if request.kind == "fork_weights" else None
    if start_weights is not None:
        check_weights(request.config, start_weights)
        backup = None
    saved = check_resume(request.config, backup) if backup else None
    if backup and saved and (ending := known_ending(request, backup, saved, ranks)) is not None:
        log.emit(ending)
        return
    num_threads = ranks.from_main(
        choose_num_threads(
            # Another number of processes shares the machine in another way.
            request.config.general.num_threads or (saved.num_threads if saved and ranks.rank.is_alone else 0),
            device_is_cpu=machine.train_device.is_cpu,
            # Equal wherever a deterministic run is started: in the window or not.
            in_window=request.in_window or request.config.general.deterministic,
            num_processes=ranks.rank.num_local,
        )
    )
    with ExitStack() as stack:
        stack.enter_context(
            process_settings(
                num_threads=num_threads,
                precision=machine.precision.name,
                deterministic=request.config.general.deterministic,
            )
        )
        stack.enter_context(no_spill(machine.train_device))
        if machine.guard is not None:
            stack.enter_context(machine.guard)
        if request.kind == "cache" or (request.kind == "train" and request.config.general.only_cache):
            _only_cache(request.config, datasets, machine, desk, log, clocks)
            return
        run_dir, backup = folder_of(request, backup, start_weights, log, clocks, ranks, asked=asked)
        if is_main and request.kind != "report":
            stack.enter_context(open_inbox(run_dir / INBOX_FILE, desk))
        setup = RunSetup(
            request.config,
            datasets,
            machine,
            desk,
            log,
            clocks,
            run_dir,
            num_threads,
            backup,
            saved,
            approved_code,
            start_weights,
        )
        try:
            carry = report_images if request.kind == "report" else carry_out
            carry(setup)
        except Exception as error:
            if request.kind != "report" and not isinstance(error, StopRequested):
                report_changes(setup)
            if is_out_of_memory(error) or is_out_of_memory(error.__cause__):
                raise not_enough_memory(error, setup) from (error.__cause__ or error)
            raise


def _report_uneven_devices(machine: Machine, log: EventLog) -> None:
    """Warn if the devices of the processes differ: all of them wait for the slowest."""
    names = machine.ranks.gather(name_of(machine.train_device))
    if machine.ranks.rank.is_main and len(set(names)) > 1:
        log.emit(
            WarningRaised(
                f"The devices of this run differ: {', '.join(names)}. Every step waits for the slowest of them.",
                "They share the images of a step evenly, so the one with the least memory limits the batch size.",
            )
        )


def _resume_after_restart(request: RunRequest, ranks: Ranks) -> RunRequest:
    """Return the request; after a restart by torchrun, a request to resume the run that it started before.

    All processes resume from the backup that the main one finds.
    """
    interrupted = None
    if ranks.rank.is_main and request.kind != "cache":
        interrupted = interrupted_run(from_root(request.config.general.workspace_dir))
    if (interrupted := ranks.from_main(interrupted)) is not None:
        return replace(request, kind="resume", resume_from=interrupted)
    if request.resume_from is None:
        return request
    return replace(request, resume_from=ranks.from_main(find_backup(request.resume_from).path))


def _with_destination(request: RunRequest, backup: BackupInfo | None, ranks: Ranks, log: EventLog) -> RunRequest:
    """Return the request with the destination of its run, which replaces nothing that the user has not agreed to.

    A fork is a new run: the result of the run it comes from stays.
    """
    config, resolved = request.config, request.config
    if ranks.rank.is_main and request.kind not in ("cache", "report") and not config.general.only_cache:
        own_run = backup.run_dir if backup is not None and request.kind == "resume" else None
        if own_run is not None:
            config = resolved = chosen_destination(config, own_run)
        if not request.replaces:
            resolved = resolved_destination(config, own_run)
        if (
            resolved.output.destination != config.output.destination
            and (taken := taken_by(config, own_run)) is not None
        ):
            log.emit(WarningRaised(taken.message, HOW_TO_REPLACE))
    destination = ranks.from_main(resolved.output.destination)
    config = without_lacking_parts(request.config, kind_of_model(request.config))
    return replace(request, config=replace_value(config, PATH, destination))


def _load_secrets_first(log: EventLog) -> None:
    """Load the stored tokens before anything else, so that they are redacted in every message of this run."""
    for problem in load_secrets().problems:
        log.emit(WarningRaised(problem.message, problem.advice))


def _fetch_datasets(request: RunRequest, log: EventLog, desk: CommandDesk, clocks: Clocks) -> None:
    """Download the data sets of the concepts on the Hugging Face hub; a resumed run uses those that are there.

    Raises DarkroomError for one that cannot be downloaded, StopRequested if it is stopped.
    """
    config = request.config
    missing = hub_datasets(config) if request.resume_from is None else hub_datasets(with_local_folders(config))
    if config.model.offline or not missing:
        return
    hub = hub_access(load_secrets().secrets)
    for dataset in missing:
        log.emit(PhaseChanged("loading", dataset.name))
        meter = DownloadMeter(emit=log.emit, desk=desk, clock=clocks.seconds)
        download(dataset, cache_dir=str(hub_cache_dir(config)), hub=hub, on_bytes=meter)


def _check(
    request: RunRequest,
    approved_code: frozenset[str],
    log: EventLog,
    desk: CommandDesk,
    *,
    run_dir: Path | None,
    ranks: Ranks,
) -> Datasets:
    """Check the config once more and return its datasets. Only the main process scans images and reports warnings.

    A resumed run that has a copy of the adapter file that it started from no longer needs that file. Raises
    DarkroomError with all errors of the config, StopRequested if it is stopped meanwhile.
    """

    def report(*, reads_images: bool) -> Report:
        return preflight.check(
            request.config,
            approved_code=approved_code,
            datasets=still_valid(request.datasets, request.config, log.emit) if reads_images else None,
            run_dir=run_dir,
            is_fork=request.kind in ("fork", "fork_weights"),
            replaces=request.replaces,
            reads_images=reads_images,
            progress=_check_progress(log.emit, desk.check),
        )

    def scan() -> Datasets:
        checked = report(reads_images=True)
        if checked.errors or checked.datasets is None:
            raise _error_of(checked)
        for problem in checked.problems:
            if problem.severity == "warning":
                log.emit(WarningRaised(problem.message, problem.advice))
        return checked.datasets

    if not ranks.rank.is_main and (of_machine := report(reads_images=False)).errors:
        raise _error_of(of_machine)
    return share_datasets(ranks, request.config, scan)


def _error_of(report: Report) -> DarkroomError:
    advice = " ".join(dict.fromkeys(e.advice for e in report.errors if e.advice))
    remedy = "space" if all(e.remedy == "space" for e in report.errors) else ""
    return RefusedConfigError(" ".join(e.message for e in report.errors), advice=advice, remedy=remedy)


def _check_progress(emit: Callable[[Event], None], check: Callable[[], None]) -> Progress:
    """Return the function that reports the work of a check as phases of the run, and stops it."""
    watch, emit_once = scan_watch(emit, check), cache(lambda: emit(PhaseChanged("estimating")))

    def report(what: str, done: int, total: int) -> None:
        if what == ESTIMATING:
            check()
            emit_once()
        else:
            watch(done, total)

    return report


def _only_cache(
    config: Config, datasets: Datasets, machine: Machine, desk: CommandDesk, log: EventLog, clocks: Clocks
) -> None:
    """Fill the caches and end. Raises DarkroomError if they are in memory."""
    if config.data.cache_location == "memory":
        raise DarkroomError(
            "The caches are set to be in memory, so there is nothing to fill before a run.",
            advice="Set the cache location to disk.",
        )
    log.emit(PhaseChanged("loading", config.model.base_model))
    model = load_model(config, machine, DownloadMeter(emit=log.emit, desk=desk, clock=clocks.seconds))
    caches = caches_of(config.data, config.general.cache_dir, model, machine, desk, log.emit)
    current = up_to_date_in_all(datasets, machine.ranks, config, log.emit, desk.check)
    build_loaders(config.data, config.masks, current, model, machine, caches)
    used = {key.tobytes().hex() for keys_NK in caches.used for key in keys_NK}
    unused = unused_entries(from_root(config.general.cache_dir), used, kinds_in_use(phase_facts(config)))
    message = f"The caches in {config.general.cache_dir} are complete: {unused.used_summary}."
    if not current.settings.reads_images:
        message += " Training images are not read and have no latents: the method only uses their captions and sizes."
    if unused.entries:
        message += f" Not in use by this config: {unused.summary}; cache --prune removes them."
    log.emit(RunFinished("cached", 0, message))
