"""The inputs of a run: config, datasets, machine, commands, log and clocks."""

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
from trainer.run.meters import DownloadMeter
from trainer.run_folder.backup import BackupInfo
from trainer.run_folder.event_log import EventLog


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of a run: monotonic seconds, and the date and time for names and files."""

    seconds: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = datetime.now


@dataclass(frozen=True, eq=False)
class RunSetup:
    """The inputs of a run: config, datasets and machine, commands and log, run folder, and the backup it resumes from.

    `approved_code` are the hashes of the user's code files that this run may execute. `start_weights` is the backup
    of another run whose weights a new run starts from.
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
    start_weights: BackupInfo | None = None

    def download_meter(self) -> DownloadMeter:
        """Return a new meter for a download of this run."""
        return DownloadMeter(emit=self.log.emit, desk=self.desk, clock=self.clocks.seconds)
