"""What a run is given, and what it has once it is loaded."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from modules.config.schema import Config
from modules.data.datasets import Datasets
from trainer.commands import CommandDesk
from trainer.run.checkpoint import SavedState
from trainer.run.machine import Machine
from trainer.run_folder.backup import BackupInfo
from trainer.run_folder.event_log import EventLog


@dataclass(frozen=True, slots=True)
class Clocks:
    """Where a run gets its time from: seconds that only go forward, and the date for names and files."""

    seconds: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = datetime.now


@dataclass(frozen=True, eq=False)
class RunSetup:
    """What a run is given: its config, images and machine, its commands and log, its folder, and where it resumes.

    `approved_code` are the hashes of files of the user's own code that this run may run.
    """

    config: Config
    datasets: Datasets
    machine: Machine
    desk: CommandDesk
    log: EventLog
    clocks: Clocks
    run_dir: Path
    num_threads: int
    backup: BackupInfo | None
    saved: SavedState | None
    approved_code: frozenset[str] = frozenset()
