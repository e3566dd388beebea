"""What a run is given, and what it has once it is loaded."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from modules.config.schema import Config
from trainer.commands import CommandDesk
from trainer.data.loader import Loader
from trainer.run.assemble import Machine
from trainer.run.backup import BackupInfo
from trainer.run.checkpoint import SavedState
from trainer.run.event_log import EventLog


@dataclass(frozen=True, slots=True)
class Clocks:
    """Where a run gets its time from: seconds that only go forward, and the date for names and files."""

    seconds: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = datetime.now


@dataclass(frozen=True, eq=False)
class RunSetup:
    """What a run is given: its config and machine, its ways to hear and speak, its folder, and where it goes on.

    `approved_code` are the hashes of files of the user's own code that this run may run.
    """

    config: Config
    machine: Machine
    desk: CommandDesk
    log: EventLog
    clocks: Clocks
    run_dir: Path
    num_threads: int
    backup: BackupInfo | None
    saved: SavedState | None
    approved_code: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class Loaders:
    """The images to learn from and those to be measured on."""

    training: Loader
    validation: Loader
