"""The automatic settings of memory and speed, chosen at the start of a run and kept in its folder for a resume.

The blocks that gradient checkpointing recomputes, the parts whose convolutions have their channels innermost, and
whether a run measures compiled blocks.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import torch

from modules.config.schema import Config
from modules.config.usage import method_of
from modules.system.atomic import write_text
from modules.system.devices import Device, free_device_bytes
from modules.system.hardware import free_memory
from modules.system.problem import count
from trainer import phases
from trainer.machine_events import SettingChosen
from trainer.preflight.estimates import sizes_of
from trainer.preflight.graphs import records_steps
from trainer.preflight.ranks import sharded_parts
from trainer.preflight.room import Blocks, automatic_parts, blocks_to_checkpoint
from trainer.run.machine import Machine
from trainer.run.setup import RunSetup
from trainer.run_folder.fork import LAYOUT_FILE
from trainer.run_folder.run_dir import start_copy_in

_CHECKPOINTING_FILE = "checkpointing.json"
_LAYOUT_SETTING = "model.channels_last"
_TENSOR_CORES = (7, 0)
"""The compute capability of the first GPUs (Volta) whose convolutions in 16 bits are computed on tensor cores."""


def checkpointed_blocks(setup: RunSetup) -> Blocks | None:
    """Return the blocks to recompute by part, the same in all processes; None if no part's choice is automatic.

    Parts that are not in it recompute all blocks: their memory cannot be estimated.
    """
    if not automatic_parts(setup.config):
        return None
    ranks = setup.machine.ranks
    return ranks.from_main(_blocks_of_main(setup) if ranks.rank.is_main else {})


def _blocks_of_main(setup: RunSetup) -> Blocks:
    """Return the choice that the run was started with, or a new one, which is written."""
    path = setup.run_dir / _CHECKPOINTING_FILE
    if setup.backup is not None and (kept := _read_blocks(path)) is not None:
        return kept
    chosen = blocks_to_checkpoint(
        setup.config,
        sizes_of(setup.datasets.training, setup.datasets.validation),
        free_bytes=_free_bytes(setup.machine),
        start_copy=start_copy_in(setup.run_dir),
    )
    blocks_by_part = chosen or {}
    entries = {part: sorted(blocks) for part, blocks in blocks_by_part.items()}
    write_text(path, json.dumps(entries, indent=2) + "\n")
    labels = setup.config.family.part_labels
    for part, blocks in blocks_by_part.items():
        recomputed = count(len(blocks), "block") if blocks else "no block"
        words = f"Gradient checkpointing recomputes {recomputed} of the part {labels[part]}."
        setup.log.emit(SettingChosen(f"parts.{part}.checkpointing", words))
    return blocks_by_part


def _read_blocks(path: Path) -> Blocks | None:
    try:
        return {part: frozenset(blocks) for part, blocks in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _free_bytes(machine: Machine) -> int | None:
    if machine.assumed_free_bytes is not None:
        return machine.assumed_free_bytes
    return free_memory() if machine.train_device.is_cpu else free_device_bytes(machine.train_device)


def parts_with_channels_last(setup: RunSetup) -> frozenset[str] | None:
    """Return the parts with the channels innermost, the same in all processes; None if the choice is not automatic."""
    if setup.config.model.channels_last != "auto":
        return None
    ranks = setup.machine.ranks
    return ranks.from_main(_layout_of_main(setup) if ranks.rank.is_main else frozenset())


def parts_in_question(config: Config) -> frozenset[str]:
    """Return the parts that an automatic choice applies to: denoiser and VAE, if a training step runs them.

    A VAE whose latents are cached only runs before the training: it stays as it is, so that the cached latents remain
    the same as in every other run. So does one that only decodes samples.
    """
    spec, facts = config.family, phases.phase_facts(config)
    needed = phases.needed_parts(phases.TRAIN, spec, facts)
    encodes = facts.needs_only_trained or (facts.reads_images and not facts.has_latent_cache)
    roles = {"denoiser", "vae"} if encodes else {"denoiser"}
    return frozenset(p.name for p in spec.parts if p.role in roles and p.name in needed)


def why_off(config: Config, device: Device, compute_dtype: torch.dtype, world_size: int) -> str:
    """Return why an automatic choice is off, to follow "because"; empty if it is on.

    The rule: it is on where cuDNN's kernels themselves work with the channels innermost, which is on the tensor cores
    of an NVIDIA GPU in 16 bits. There the other layout is transposed before and after each convolution (NVIDIA, "Deep
    Learning Performance: Convolutional Layers User's Guide", tensor layouts). On CPUs and in 32 bits either may be
    faster, by a few percent, and ROCm's kernels prefer the other layout: nothing there is worth other results.
    """
    if config.general.deterministic:
        return "the run is deterministic"
    if config.model.compile == "on":
        return "the compiler chooses the layout of compiled blocks itself"
    if sharded_parts(config, world_size):
        return "no process has the whole model"
    if device.type != "cuda" or torch.version.hip is not None:
        return "only NVIDIA GPUs are surely faster with it"
    if torch.cuda.get_device_capability(device.torch) < _TENSOR_CORES:
        return "the GPU has no tensor cores"
    if compute_dtype.itemsize != 2:
        return "the run does not compute in 16 bits"
    return ""


def measures_compiled_blocks(config: Config, device: Device, world_size: int) -> bool:
    """Return whether a run measures if compiled blocks are faster (`trainer/callbacks/compile_trial.py`).

    On a GPU alone, whose compiler is there: on a CPU compiling takes longer than most runs. Not where results must
    not depend on a measurement, or where the time of a step does not: with rollouts, and with several processes, which
    would measure different times.
    """
    return (
        config.model.compile == "auto"
        and device.type == "cuda"
        and not config.general.deterministic
        and world_size == 1
        and not method_of(config).samples_images
        and importlib.util.find_spec("triton") is not None
        and not records_steps(config, device.type, world_size)
    )


def _layout_of_main(setup: RunSetup) -> frozenset[str]:
    """Return the choice that the run was started with, or a new one, which is written."""
    path, config, machine = setup.run_dir / LAYOUT_FILE, setup.config, setup.machine
    if setup.backup is not None and (kept := _read_layout(path)) is not None:
        return kept
    reason = why_off(config, machine.train_device, machine.precision.compute_dtype, machine.ranks.rank.world_size)
    chosen = frozenset() if reason else parts_in_question(config)
    write_text(path, json.dumps({"channels_last": sorted(chosen)}, indent=2) + "\n")
    on = f"Channels last is on for {', '.join(sorted(chosen))}: the GPU's kernels work in this layout."
    setup.log.emit(SettingChosen(_LAYOUT_SETTING, f"Channels last is off, because {reason}." if reason else on))
    return chosen


def _read_layout(path: Path) -> frozenset[str] | None:
    try:
        return frozenset(str(name) for name in json.loads(path.read_text(encoding="utf-8"))["channels_last"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
