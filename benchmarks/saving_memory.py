"""The cost in time and the saved memory of each way of saving memory, compared to a run without any."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.device_bytes import DeviceBytes
from benchmarks.loop_speed import run_setup
from benchmarks.measure import Ratio, compare
from modules.config.codec import decode, encode
from modules.config.schema import Config
from modules.system.devices import Device
from trainer.launch import smooth_interpreter
from trainer.preflight.room import RESERVE_FOR_BLOCKS
from trainer.run.finish import PreparedRun
from trainer.run.setup import RunSetup
from trainer.run.training_run import prepare
from trainer.step.loop import train_epoch
from trainer.step.precision import process_settings

AUTOMATIC = {"automatic checkpointing in 70 % of the memory": 0.7, "automatic checkpointing in 50 % of the memory": 0.5}
WAYS: dict[str, dict[str, Any]] = {
    **{way: {"checkpointing": "auto"} for way in AUTOMATIC},
    "checkpointing cheap operations only": {"checkpointing": "selective"},
    "checkpointing transformer blocks only": {"checkpointing": "transformer"},
    "checkpointing per block": {"checkpointing": "block"},
    "checkpointing the whole part": {"checkpointing": "whole"},
    "per block, activations offloaded": {"checkpointing": "block", "offload_activations": True},
    "per block, half of the layers offloaded": {"checkpointing": "block", "offload_fraction": 0.5},
    "per block, all layers offloaded": {"checkpointing": "block", "offload_fraction": 1.0},
}


@dataclass(frozen=True, slots=True)
class Saving:
    """A way of saving memory: its speed and peak on the training device, compared to a run without any."""

    way: str
    speed: Ratio
    peak_bytes: int
    plain_peak_bytes: int


def ways_against_none(config: Config, *, rounds: int, num_threads: int) -> Iterator[Saving]:
    """Yield the measurement of each way; a round is an epoch of the config, the peak is measured in a later epoch."""
    with process_settings(num_threads=num_threads, precision=config.training.precision, deterministic=False):
        plain_peak = peak_of(config)
        for way, settings in WAYS.items():
            saving, share = with_parts(config, settings), AUTOMATIC.get(way)
            free_bytes = None if share is None else round(share * plain_peak / (1 - RESERVE_FOR_BLOCKS))
            yield Saving(
                way, _speed(saving, config, rounds, num_threads, free_bytes), peak_of(saving, free_bytes), plain_peak
            )


def of_denoiser(config: Config, *, trains: str) -> Config:
    """Return the config with only the denoiser trained, by an adapter or fully; in small models the text encoder is
    larger than the denoiser.
    """
    tree = encode(config)
    tree["training"] |= {"trains": trains}
    for part in config.family.trainable_parts:
        tree["parts"][part.name] = tree["parts"].get(part.name, {}) | {"train": part.role == "denoiser"}
    return decode(tree).config


def _speed(saving: Config, plain: Config, rounds: int, num_threads: int, free_bytes: int | None) -> Ratio:
    runs = [prepare(_setup(c, free_bytes)) for c in (saving, plain)]
    try:
        ours, bare = (run.training for run in runs)
        device = runs[0].setup.machine.train_device
        in_cpu_time = device.is_cpu and num_threads == 1
        with smooth_interpreter():
            return compare(
                lambda: train_epoch(ours),
                lambda: train_epoch(bare),
                rounds=rounds,
                device=device,
                in_cpu_time=in_cpu_time,
            )
    finally:
        for run in runs:
            run.close()


def _setup(config: Config, free_bytes: int | None) -> RunSetup:
    setup = run_setup(config)
    return dataclasses.replace(setup, machine=dataclasses.replace(setup.machine, assumed_free_bytes=free_bytes))


def peak_of(config: Config, free_bytes: int | None = None) -> int:
    """Return the peak bytes on the training device in an epoch after the first.

    On a CPU devices are distinguished by the tags of the guard. `free_bytes` is the memory that automatic checkpointing
    assumes to be free, instead of what is free.
    """
    gc.collect()  # checkpointed blocks of a finished run are in reference cycles with their weights
    setup = _setup(config, free_bytes)
    device = setup.machine.train_device
    counter = None if device.type == "cuda" else DeviceBytes(device)
    if counter is not None:
        setup = dataclasses.replace(setup, machine=dataclasses.replace(setup.machine, guard=counter))
    with counter or nullcontext():
        run = prepare(setup)
        try:
            train_epoch(run.training)  # creates the optimizer state
            return _peak_of_epoch(run, device, counter)
        finally:
            run.close()


def _peak_of_epoch(run: PreparedRun, device: Device, counter: DeviceBytes | None) -> int:
    if counter is not None:
        counter.start_over()
        train_epoch(run.training)
        return counter.peak
    torch.cuda.reset_peak_memory_stats(device.torch)
    train_epoch(run.training)
    return torch.cuda.max_memory_allocated(device.torch)


def with_parts(config: Config, settings: dict[str, Any]) -> Config:
    """Return the config with settings for every trainable part."""
    tree = encode(config)
    for part in config.family.trainable_parts:
        tree["parts"][part.name] = tree["parts"].get(part.name, {}) | settings
    return decode(tree).config
