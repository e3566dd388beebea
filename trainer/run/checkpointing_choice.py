"""The blocks that automatic checkpointing recomputes in a run: chosen once, and kept with the run for a resume."""

from __future__ import annotations

import json
from pathlib import Path

from modules.system.atomic import write_text
from modules.system.devices import free_device_bytes
from modules.system.hardware import free_memory
from modules.system.problem import count
from trainer.events import SettingChosen
from trainer.preflight.auto_checkpointing import Blocks, automatic_parts, blocks_to_checkpoint
from trainer.preflight.estimates import sizes_of
from trainer.run.machine import Machine
from trainer.run.setup import RunSetup
from trainer.run_folder.start_copy import start_copy_in

FILE = "checkpointing.json"


def checkpointed_blocks(setup: RunSetup) -> Blocks | None:
    """Return the blocks to recompute by part, the same in all processes; None if no part's choice is automatic.

    Parts that are not in it recompute all blocks: their memory cannot be estimated.
    """
    if not automatic_parts(setup.config):
        return None
    ranks = setup.machine.ranks
    return ranks.from_main(_of_main(setup) if ranks.rank.is_main else {})


def _of_main(setup: RunSetup) -> Blocks:
    """Return the choice that the run was started with, or a new one, which is written."""
    path = setup.run_dir / FILE
    if setup.backup is not None and (kept := _read(path)) is not None:
        return kept
    chosen = blocks_to_checkpoint(
        setup.config,
        sizes_of(setup.datasets.training, setup.datasets.validation),
        free_bytes=_free_bytes(setup.machine),
        start_copy=start_copy_in(setup.run_dir),
    )
    found = chosen or {}
    write_text(path, json.dumps({part: sorted(blocks) for part, blocks in found.items()}, indent=2) + "\n")
    for part, blocks in found.items():
        words = f"Gradient checkpointing recomputes {count(len(blocks), 'block')} of {part}."
        setup.log.emit(SettingChosen(f"parts.{part}.checkpointing", words))
    return found


def _read(path: Path) -> Blocks | None:
    try:
        return {part: frozenset(blocks) for part, blocks in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _free_bytes(machine: Machine) -> int | None:
    if machine.assumed_free_bytes is not None:
        return machine.assumed_free_bytes
    return free_memory() if machine.train_device.is_cpu else free_device_bytes(machine.train_device)
