"""Writes the recipe of a run, once it is set up and again with its result, and compares it with the last good run."""

from __future__ import annotations

import functools
import logging
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from modules.config.codec import encode, pack_lists
from modules.data.dataset import Dataset
from modules.formats.headers import UnreadableFileError
from modules.system.gpu_tools import run_tool
from modules.system.versions import versions_here
from trainer.callbacks.pace import EarlierPace
from trainer.callbacks.side_output import SideOutput
from trainer.data.concept_digests import digests_of_concepts
from trainer.data.datasets import cache_folder
from trainer.events import PhaseChanged, WarningRaised
from trainer.preflight.read_files import digests_of_files, files_read_by
from trainer.run.machine import Machine as RunMachine
from trainer.run.machine import name_of
from trainer.run.setup import RunSetup
from trainer.run.threads import cpu_model
from trainer.run_folder.differences import list_differences
from trainer.run_folder.fork import COMPILE_FILE, LAYOUT_FILE, origin_of
from trainer.run_folder.payload import payload_of
from trainer.run_folder.recipe import RECIPE_FILE, Machine, Recipe, Result, known_recipe, write_recipe
from trainer.run_folder.since_last_good import (
    CAUSES_OF_FAILURE,
    CAUSES_OF_SLOWNESS,
    MIN_PACE_STEPS,
    since_last_good,
)

logger = logging.getLogger("darkroom.run")

_CHOICE_FILES = {"the memory layout": LAYOUT_FILE, "compiled blocks": COMPILE_FILE}
_MAX_CHOICE_CHARS = 10_000
_DRIVER_QUERY = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def start_recipe(setup: RunSetup, datasets: Sequence[Dataset]) -> Recipe | None:
    """Write the recipe of a run that is set up, without its result, and return it. A failure is a warning.

    Only known digests are in it: a base model without one is read at the end of the run.
    """
    earlier = known_recipe(setup.run_dir) if setup.backup is not None else None
    resumed_at = earlier.resumed_at if earlier is not None else ()
    origin = origin_of(setup.run_dir)
    recipe = None
    with _output(setup).warn_on_failure():
        recipe = Recipe(
            config=encode(pack_lists(setup.config)),
            versions=dict(versions_here()),
            machine=machine_facts(setup.machine, setup.num_threads),
            files=digests_of_files(setup.config, files_read_by(setup.config), reads=False),
            concepts=digests_of_concepts(datasets, cache_folder(setup.config)),
            choices=_choices(setup.run_dir, setup.machine),
            resumed_at=(*resumed_at, setup.backup.step) if setup.backup is not None else (),
            origin=f"{origin.run_dir.name}, step {origin.step}" if origin is not None else "",
        )
        write_recipe(setup.run_dir, recipe)
    return recipe


def finish_recipe(setup: RunSetup, result: Path, *, step: int) -> None:
    """Add the result of a run to its recipe, and the digests of its base model; warn if that fails.

    Files that have changed while the run trained get no digest: the run may have read other contents.
    """
    recipe = known_recipe(setup.run_dir)
    if recipe is None:
        return
    setup.log.emit(PhaseChanged("saving", RECIPE_FILE))
    with _output(setup).warn_on_failure():
        started_ns = (setup.run_dir / RECIPE_FILE).stat().st_mtime_ns
        files_read = files_read_by(setup.config)
        read = digests_of_files(setup.config, files_read, reads=True)
        files = [r if f.mtime_ns <= started_ns else f.recipe_entry("") for f, r in zip(files_read, read, strict=True)]
        recipe = replace(recipe, files=tuple(files), choices=_choices(setup.run_dir, setup.machine))
        try:
            num_tensors, payload = payload_of(result)
            recipe = replace(recipe, result=Result(str(result), step, num_tensors, payload))
        except UnreadableFileError as error:
            raise OSError(str(error)) from error
        finally:
            write_recipe(setup.run_dir, recipe)


def with_this_attempt(recipe: Recipe, setup: RunSetup) -> Recipe:
    """Return a recipe with the present settings, versions and machine, which a resumed run may not have written yet."""
    return replace(
        recipe,
        config=encode(pack_lists(setup.config)),
        versions=dict(versions_here()),
        machine=machine_facts(setup.machine, setup.num_threads),
    )


def machine_facts(machine: RunMachine, num_threads: int) -> Machine:
    """Return the facts about the machine that computes a run."""
    return Machine(
        device=name_of(machine.train_device),
        processor=cpu_model(),
        system=f"{platform.system()} {platform.machine()}",
        driver=driver_version() if machine.train_device.type == "cuda" and torch.version.hip is None else "",
        num_threads=num_threads,
        num_processes=machine.ranks.rank.world_size,
    )


@functools.cache
def driver_version() -> str:
    """Return the version of NVIDIA's driver; empty if its tool does not report it."""
    try:
        return run_tool(_DRIVER_QUERY).strip().splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return ""


def _choices(run_dir: Path, machine: RunMachine) -> Mapping[str, str]:
    """Return the run's own choices that change how results are rounded: those with a file in its folder, and TF32."""
    choices: dict[str, str] = {"TF32": machine.precision.tf32}
    for name, file in _CHOICE_FILES.items():
        if (run_dir / file).is_file():
            text = (run_dir / file).read_text(encoding="utf-8", errors="replace")
            choices[name] = " ".join(text.split())[:_MAX_CHOICE_CHARS]
    return choices


def _output(setup: RunSetup) -> SideOutput:
    return SideOutput("The recipe of the run", setup.run_dir / RECIPE_FILE, setup.log.emit)


def earlier_pace(run_dir: Path) -> EarlierPace | None:
    """Return the pace of the last good run before a run, if its steps compute the same."""
    try:
        since = since_last_good(run_dir)
    except (OSError, ValueError):  # its drive may be gone, which must not end this run
        logger.warning("The last good run could not be read.", exc_info=True)
        return None
    if since is None or since.good.pace is None or not since.has_equal_steps:
        return None
    pace = since.good.pace
    if pace.num_steps < MIN_PACE_STEPS or not pace.step_seconds > 0:
        return None
    changed = since.of_steps().by_likelihood(CAUSES_OF_SLOWNESS)
    known = list_differences(changed)
    changes = f"Changed since: {known}." if known else "Nothing that is recorded has changed since."
    likely = f"Likely: {changed[0].text}." if len(changed) > 1 else ""
    return EarlierPace(since.good.name, pace.step_seconds, changes, likely)


def report_changes(setup: RunSetup) -> None:
    """Report what changed since the last good run, for a run that fails. Raises nothing."""
    if not setup.machine.ranks.rank.is_main:
        return
    try:
        recipe = known_recipe(setup.run_dir)
        if recipe is None:  # it failed before it was set up
            recipe = start_recipe(setup, (setup.datasets.training, setup.datasets.validation))
        since = since_last_good(setup.run_dir, with_this_attempt(recipe, setup) if recipe is not None else None)
    except Exception:  # the device may be broken, too: the error of the run is the one to report
        logger.exception("The changes since the last good run could not be determined.")
        return
    if since is not None:
        setup.log.emit(WarningRaised(since.sentence(CAUSES_OF_FAILURE)))
