"""The failure of a run as a sentence and an advice, with the technical details in the run's folder."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from pathlib import Path

from modules.config.schema import Config
from modules.formats.repository import MissingModelError
from modules.system.atomic import write_text
from modules.system.errors import DarkroomError
from modules.system.file_errors import NO_THREAD, is_disk_full
from modules.system.hardware import GpuMemory, gpu_memory
from modules.system.problem import format_size
from modules.system.redaction import redact
from trainer.events import RunFailed
from trainer.preflight.budget import memory_problems
from trainer.preflight.estimates import sizes_of
from trainer.preflight.model_files import successor_of
from trainer.preflight.run_budget import Counts, known_budget
from trainer.ranks import LostProcessError
from trainer.run.setup import RunSetup
from trainer.run_folder.backup import BackupInfo, list_backups
from trainer.step.failures import BranchError, NotEnoughMemoryError, explain, is_fixable, is_out_of_memory

_SHARE = 0.8  # of the estimate: the savings should bring the run well below the memory that was not enough

logger = logging.getLogger("darkroom.run")


class RefusedConfigError(DarkroomError):
    """The check before a run has found errors in its config."""


def failure_of(error: BaseException, run_dir: Path | None) -> RunFailed:
    """Return the failure of a run, if necessary without its backup and details: a run never ends without an event."""
    try:
        return _full_failure(error, run_dir)
    except Exception:
        logger.exception("The failure of the run could not be described in full.")
        return RunFailed("The run failed, and why could not be described.", "The log has the details.")


def _full_failure(error: BaseException, run_dir: Path | None) -> RunFailed:
    """Return the failure as a sentence and an advice, with the technical details in the run's folder."""
    message, advice = explain(error)
    backups = list_backups(run_dir) if run_dir else []
    backup_path = str(backups[-1].path) if backups else ""
    if isinstance(error, LostProcessError) and run_dir is not None and not backups:
        advice = "There is no backup of this run yet: start it again."
    if isinstance(error, OSError):
        advice = f"{advice} {_how_to_continue(run_dir, backups)}"
    if is_fixable(error):
        missing = error.name if isinstance(error, MissingModelError) else ""
        return RunFailed(
            message,
            advice,
            backup_path=backup_path,
            missing_model=missing,
            remedy=remedy_of(error),
            is_refused=isinstance(error, RefusedConfigError),
        )
    details = redact("".join(traceback.format_exception(error)))
    if isinstance(error, OSError) or is_out_of_memory(error) or NO_THREAD in str(error):
        # Its sentence is enough; where no log is open, this is printed.
        logger.error("The run failed: %s", message)
    else:
        logger.error("The run failed.\n%s", details)
    return RunFailed(message, advice, _write_details(details, run_dir), backup_path, remedy=remedy_of(error))


def remedy_of(error: BaseException) -> str:
    """Return the remedy of an error, or of the one that made a branch of the dry run fail; empty without one."""
    if isinstance(error, MissingModelError) and successor_of(error.name):
        return "repository"
    if is_disk_full(error):
        return "space"
    if is_out_of_memory(error):
        return "memory"
    remedy = error.remedy if isinstance(error, DarkroomError) else ""
    return remedy or (
        remedy_of(error.__cause__) if isinstance(error, BranchError) and error.__cause__ is not None else ""
    )


def _how_to_continue(run_dir: Path | None, backups: Sequence[BackupInfo]) -> str:
    """Return advice for when the disk works again; `run_dir` is None for a run that has not opened its folder."""
    if run_dir is None:
        return "Then try again."
    if not backups:
        return f"Then start the run again: {run_dir.name} has no backup yet."
    newest = backups[-1]
    return f"Then resume the run {newest.run_dir.name}: its backup of step {newest.step:,} is complete."


def not_enough_memory(error: Exception, setup: RunSetup) -> NotEnoughMemoryError:
    """Return the error with the estimated memory of the run, and with settings that would lower it, and by how much."""
    message, advice = explain(error)
    try:
        sizes = sizes_of(setup.datasets.training, setup.datasets.validation)
        estimate, ways = memory_advice(setup.config, sizes)
    except Exception:
        logger.exception("There is no estimate of the memory.")
        estimate, ways = "", ""
    advice = " ".join(text for text in (ways, advice if isinstance(error, DarkroomError) or not ways else "") if text)
    return NotEnoughMemoryError(f"{message} {estimate}".strip(), advice=advice, remedy="memory")


def _write_details(details: str, run_dir: Path | None) -> str:
    """Write the technical details into the run's folder; return the file's path, or an empty string if that fails."""
    if run_dir is None:
        return ""
    file = run_dir / "error.txt"
    try:
        write_text(file, details)
    except OSError:  # the disk may be full, which may even be why the run failed
        logger.warning("%s could not be written.", file, exc_info=True)
        return ""
    return str(file)


def memory_advice(config: Config, sizes: Counts) -> tuple[str, str]:
    """Return the estimate as a sentence, and the settings that save memory with what each saves.

    Both are empty where the shapes of the model are not known. `sizes` are the image sizes with their counts.
    """
    budget = known_budget(config, sizes)
    if budget is None:
        return "", ""
    memory = budget.memory()
    gpu = gpu_memory(config.general.train_device)
    needed = memory.peak.total_bytes
    has = f" The GPU has {format_size(gpu.total_bytes)}." if gpu is not None else ""
    total = min(needed, gpu.total_bytes) if gpu is not None else needed
    enough = GpuMemory(total_bytes=total, free_bytes=round(_SHARE * total))
    problem = next(memory_problems(budget, memory_of=lambda _device: enough), None)
    advice, _, verdict = problem.advice.partition(", which ") if problem is not None else ("", "", "")
    # Whether that fits is not known: the run has needed more than was estimated, or others have used the GPU.
    return f"The estimate for these settings: {memory}{has}", f"{advice}." if verdict else advice
