"""The parts whose convolutions have their channels innermost: chosen once, and kept with the run for a resume.

Measured are the parts that a training step runs. A VAE whose latents are cached only runs before the training: it stays
as it is, so that the cached latents remain those of every other run.
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import torch

from modules.config.schema import Config
from modules.estimate.architecture import architecture_of
from modules.families.registry import FAMILIES
from modules.memory.placement import free_cached_memory
from modules.system.atomic import write_text
from modules.system.machine_choices import machine_choice, machine_identity
from trainer import phases
from trainer.events import PhaseChanged, SettingChosen
from trainer.preflight.estimates import sizes_of
from trainer.preflight.run_budget import Counts
from trainer.preflight.sharding import sharded_parts
from trainer.run.layout_speed import Seconds, measured_seconds, most_frequent
from trainer.run.machine import Machine, name_of
from trainer.run.setup import RunSetup
from trainer.run_folder.fork import LAYOUT_FILE
from trainer.run_folder.start_copy import existing_start_copy
from trainer.step.failures import is_out_of_memory

_PATH = "model.channels_last"
_WORTH_IT = 1.05  # times as fast: results differ in rounding, and a measurement by a few percent


def parts_with_channels_last(
    setup: RunSetup, on_bytes: Callable[[float, float], None] | None = None
) -> frozenset[str] | None:
    """Return the parts with the channels innermost, the same in all processes; None if the choice is not automatic.

    `on_bytes` is called during a download of the model.
    """
    if setup.config.model.channels_last != "auto":
        return None
    ranks = setup.machine.ranks
    return ranks.from_main(_of_main(setup, on_bytes) if ranks.rank.is_main else frozenset())


def measured_parts(config: Config) -> tuple[str, ...]:
    """Return the parts that an automatic choice is about: denoiser and VAE, as far as a training step runs them.

    A VAE that only decodes samples is none of them.
    """
    spec, facts = FAMILIES[config.model.family], phases.phase_facts(config)
    needed = phases.needed_parts(phases.TRAIN, spec, facts)
    encodes = facts.needs_only_trained or (facts.reads_images and not facts.has_latent_cache)
    roles = {"denoiser", "vae"} if encodes else {"denoiser"}
    return tuple(p.name for p in spec.parts if p.role in roles and p.name in needed)


def why_not_measured(config: Config, world_size: int) -> str:
    """Return why an automatic choice is off, to follow "because"; empty if it is measured."""
    if config.general.deterministic:
        return "the run is deterministic"
    if config.general.debug_checks:
        return "debug checks slow down every operation"
    if config.model.compile:
        return "the compiler chooses the layout of compiled blocks itself"
    if sharded_parts(config, world_size):
        return "no process has the whole model"
    return ""


def faster_parts(seconds: Mapping[str, Seconds]) -> frozenset[str]:
    """Return the parts that are clearly faster with the channels innermost."""
    return frozenset(name for name, (usual, innermost) in seconds.items() if usual > _WORTH_IT * innermost)


def _of_main(setup: RunSetup, on_bytes: Callable[[float, float], None] | None) -> frozenset[str]:
    """Return the choice that the run was started with, or a new one, which is written."""
    path, config = setup.run_dir / LAYOUT_FILE, setup.config
    if setup.backup is not None and (kept := _read(path)) is not None:
        return kept
    reason = why_not_measured(config, setup.machine.ranks.rank.world_size)
    seconds: Mapping[str, Seconds] = {}
    if not reason:
        seconds, reason = _seconds(setup, on_bytes)
    chosen = faster_parts(seconds)
    write_text(path, json.dumps({"channels_last": sorted(chosen)}, indent=2) + "\n")
    words = [
        f"Channels last is {'on' if name in chosen else 'off'} for {name}: {innermost:.4g} s with it, {usual:.4g} s "
        "without."
        for name, (usual, innermost) in seconds.items()
    ]
    setup.log.emit(SettingChosen(_PATH, " ".join(words) or f"Channels last is off, because {reason}."))
    return chosen


def _seconds(setup: RunSetup, on_bytes: Callable[[float, float], None] | None) -> tuple[Mapping[str, Seconds], str]:
    """Return the seconds of each part in both layouts: those of an earlier run like this one, or measured ones.

    Without any there is a reason instead, to follow "because".
    """
    config, machine = setup.config, setup.machine
    sizes = sizes_of(setup.datasets.training, setup.datasets.validation)
    parts = measured_parts(config)
    if not parts or not sizes:
        return {}, "no training step runs a part with convolutions"

    def measured() -> str:
        setup.log.emit(PhaseChanged("loading", "measuring channels last"))
        found = measured_seconds(
            config,
            machine,
            parts,
            size=most_frequent(sizes),
            start_copy=existing_start_copy(setup.run_dir),
            clock=setup.clocks.seconds,
            check=setup.desk.check,
            on_bytes=on_bytes,
        )
        setup.log.emit(PhaseChanged("loading", config.model.base_model))
        return json.dumps(found)

    has_memory, stored = True, ""
    try:
        stored = machine_choice(
            "channels last",
            _workload(config, parts, sizes, num_threads=setup.num_threads),
            measured,
            kind=str,
            machine=_machine_name(machine),
        )
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        has_memory = False
    if not has_memory:  # the error held the model until here
        gc.collect()
        free_cached_memory(machine.train_device)
        return {}, "there was not enough memory to measure it"
    seconds = _seconds_in(stored)
    return seconds, "" if seconds else "machine_choices.json has no two times for this run"


def _seconds_in(stored: str) -> Mapping[str, Seconds]:
    """Return the seconds of a stored choice; nothing of one that was edited."""
    try:
        found = json.loads(stored).items()
        return {str(name): (float(usual), float(innermost)) for name, (usual, innermost) in found}
    except (ValueError, TypeError, AttributeError):
        return {}


def _workload(config: Config, parts: Collection[str], sizes: Counts, *, num_threads: int) -> str:
    """Return what the choice depends on beside the machine, as text."""
    size, training = most_frequent(sizes), config.training
    dtypes = ", ".join(f"{name} {config.part(name).dtype} {config.part(name).checkpointing}" for name in parts)
    return "; ".join(
        (
            f"{config.model.family} {_digest_of_shapes(config, parts)}",
            dtypes,
            f"{training.trains} {training.precision}",
            f"{training.batch_size} x {size.width_px}x{size.height_px}",
            f"{training.attention}, {num_threads} threads",
        )
    )


def _digest_of_shapes(config: Config, parts: Collection[str]) -> str:
    """Return a digest of the configs of the parts, or the model's name where its files do not have them."""
    found = architecture_of(config.model.base_model, config.model.family)
    if found is None:
        return config.model.base_model
    configs = {name: dict(found.configs[name]) for name in parts if name in found.configs}
    text = json.dumps(configs, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _machine_name(machine: Machine) -> str:
    """Return the processor, or the GPU with it, and the version of torch."""
    device = machine.train_device
    return machine_identity() if device.is_cpu else f"{name_of(device)}, cuDNN {_cudnn()} | {machine_identity()}"


def _cudnn() -> str:
    return str(torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else "none")


def _read(path: Path) -> frozenset[str] | None:
    try:
        return frozenset(str(name) for name in json.loads(path.read_text(encoding="utf-8"))["channels_last"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
