"""Stage 11: caching, memory that a run does not free, a device that runs out of memory, and debug checks."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from unittest import mock

import torch

from benchmarks.cache_speed import cache_against_bare
from benchmarks.gpu.models import device_of, memory_of, small_run
from benchmarks.gpu.stage import Case, Check, Finding, Request, at_least, at_most
from benchmarks.loop_speed import run_setup
from benchmarks.rows import Row
from modules.config.schema import Config
from modules.settings.edit import replace_value
from modules.system.devices import Device
from trainer.commands import CommandDesk
from trainer.events import Event, RunFailed, RunFinished
from trainer.launch import RunRequest
from trainer.run.execute import execute_guarded
from trainer.run.training_run import prepare
from trainer.step.loop import train_epoch
from trainer.step.precision import process_settings
from trainer.step.stepper import Stepper

_MIN_CACHING = 0.9  # of the speed of the VAE alone
_MAX_LEFT_MIB = 1.0
_TOO_LITTLE = 8 << 20  # bytes, on a GPU


def cases(request: Request) -> Sequence[Case]:
    """Return the cases of the stage."""
    return (
        Case("caching", partial(_caching, request)),
        Case("memory that a run leaves", partial(_memory_left, request)),
        Case("no memory left", partial(_no_memory, request)),
        Case("debug checks", partial(_debug_checks, request)),
    )


def _caching(request: Request, _seconds: float) -> Iterator[Finding]:
    device, is_tiny = device_of(request), request.is_tiny
    folder = request.folder / "caching"
    folder.mkdir(parents=True, exist_ok=True)
    num_images, side_px = (2, 64) if is_tiny else (32, 512)
    speed = cache_against_bare(folder, device, num_images=num_images, side_px=side_px, rounds=1 if is_tiny else 5)
    words = f"{speed.ratio:.2f} of the speed of the VAE alone, {num_images / speed.ours_seconds:.1f} images a second"
    yield Row(f"SD's VAE at {side_px} px", words, numbers={"ratio": speed.ratio})
    if not is_tiny:
        yield at_least("speed of caching", speed.ratio, _MIN_CACHING)


def _memory_left(request: Request, _seconds: float) -> Iterator[Finding]:
    """Train twice, and compare the bytes in use on the device afterwards."""
    device, left = device_of(request), []
    for number in range(2):
        _train(small_run(request, folder=f"left-{number}"))
        gc.collect()
        left.append(_live_bytes(device))
    yield at_most("MiB more after the second run", (left[1] - left[0]) / 2**20, _MAX_LEFT_MIB)


def _live_bytes(device: Device) -> int:
    """Return the bytes of all tensors on a device; on a CPU of the tensors that the garbage collector tracks."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device.torch)
    known = [t for t in gc.get_objects() if isinstance(t, torch.Tensor) and t.layout == torch.strided]
    storages = {s.data_ptr(): s.nbytes() for t in known if t.device.type == "cpu" for s in (t.untyped_storage(),)}
    return sum(storages.values())


def _train(config: Config) -> int:
    """Train an epoch and return the number of its steps."""
    with process_settings(num_threads=1, precision=config.training.precision, deterministic=False):
        run = prepare(run_setup(config))
        try:
            train_epoch(run.training)
            return run.training.counters.step
        finally:
            run.close()


def _no_memory(request: Request, _seconds: float) -> Iterator[Finding]:
    """Check that a run with too little memory reports that, frees what it used, and does not disturb the next run."""
    device = device_of(request)
    config = replace_value(small_run(request, folder="no-memory"), "training.epochs", 1)
    before = torch.cuda.memory_allocated(device.torch) if device.type == "cuda" else 0  # the workspaces of libraries
    with _too_little_memory(device):
        ending = _ending(config)
    got = ending.message if isinstance(ending, RunFailed) else ending.outcome
    yield Check("a run without memory", got, "it names the memory", isinstance(ending, RunFailed) and "memory" in got)
    if device.type == "cuda":
        held = torch.cuda.memory_allocated(device.torch) - before
        yield at_most("MiB held afterwards", held / 2**20, _MAX_LEFT_MIB)
    after = _ending(config)
    got = after.message if isinstance(after, RunFailed) else after.outcome
    yield Check("the run after it", got, "finished", got == "finished")


def _too_little_memory(device: Device) -> AbstractContextManager[object]:
    """Return the context in which a device has no memory for a step; on a CPU the error of a GPU is raised."""
    if device.type == "cuda":
        return memory_of(device, _TOO_LITTLE)
    return mock.patch.object(Stepper, "backward", side_effect=torch.OutOfMemoryError("CUDA out of memory."))


def _ending(config: Config) -> RunFinished | RunFailed:
    endings: list[RunFinished | RunFailed] = []

    def emit(event: Event) -> None:
        if isinstance(event, RunFinished | RunFailed):
            endings.append(event)

    execute_guarded(RunRequest(config, in_window=False), emit=emit, desk=CommandDesk())
    return endings[-1]


def _debug_checks(request: Request, _seconds: float) -> Iterator[Finding]:
    steps = _train(replace_value(small_run(request, folder="debug"), "general.debug_checks", True))
    yield at_least("steps with debug checks", steps, 1)
