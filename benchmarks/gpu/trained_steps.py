"""Trains some steps of a run for their losses, time, memory and automatic choices, and compares two such runs."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import median

import torch

from benchmarks.gpu.stage import Check, Finding, at_most
from benchmarks.loop_speed import run_setup
from benchmarks.measure import wait_for
from benchmarks.rows import Row
from modules.config.schema import Config
from modules.optim.param_groups import exact_parameters
from modules.system.devices import Device
from trainer.machine_events import SettingChosen
from trainer.run.finish import PreparedRun
from trainer.run.training_run import prepare
from trainer.run_folder.event_log import read_events
from trainer.step.callback import StepView
from trainer.step.loop import train_epoch
from trainer.step.precision import process_settings, timed_kernels

_WARMUP_EPOCHS = 2
_TINY_LOSS = 1e-12


@dataclass(frozen=True, slots=True)
class TrainedSteps:
    """The losses of steps, the seconds of a later one (median of the epochs), and the peak bytes of a GPU (else 0).

    `num_graphs` CUDA graphs were recorded, and the optimizer's step `num_updates` times, unless there is a
    `graphs_failure`. `chosen` are the summaries of the run's automatic choices, by the paths of their settings.
    `weights` are the trained weights at the end, by name.
    """

    losses: tuple[float | None, ...]
    seconds: float
    peak_bytes: int = 0
    reserved_bytes: int = 0
    num_graphs: int = 0
    num_updates: int = 0
    graphs_failure: str = ""
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    chosen: dict[str, str] = field(default_factory=dict)


class _Losses:
    """Keeps the losses of a run (`Reporter`)."""

    def __init__(self) -> None:
        self.losses: list[float | None] = []

    def after_step(self, view: StepView) -> None:
        """Keep the loss of a step."""
        self.losses.append(view.outcome.loss)


def train_steps(
    config: Config,
    device: Device,
    *,
    num_epochs: int,
    way: AbstractContextManager[object] | None = None,
    until_chosen: str = "",
) -> TrainedSteps:
    """Train some epochs within the context `way`, which changes the program, after two epochs that are not timed.

    `until_chosen` is the path of a setting: the run ends once it has reported its automatic choice for it.
    """
    gc.collect()  # frees the model of the run before
    is_deterministic = config.general.deterministic
    with (
        way or nullcontext(),
        process_settings(num_threads=1, precision=config.training.precision, deterministic=is_deterministic),
        timed_kernels(device, num_sizes=1, deterministic=is_deterministic),
    ):
        run = prepare(run_setup(config))
        try:
            return _train_and_measure(run, device, num_epochs, until_chosen)
        finally:
            run.close()


def _train_and_measure(run: PreparedRun, device: Device, num_epochs: int, until_chosen: str) -> TrainedSteps:
    kept, training, seconds = _Losses(), run.training, list[float]()
    training.reporters = (*training.reporters, kept)
    for epoch in range(_WARMUP_EPOCHS + num_epochs):
        if epoch == _WARMUP_EPOCHS and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device.torch)
        first, start = training.position.step, time.perf_counter()
        train_epoch(training)
        wait_for(device)
        if epoch >= _WARMUP_EPOCHS:
            seconds.append((time.perf_counter() - start) / (training.position.step - first))
        if until_chosen and until_chosen in _choices(run):
            break
    assert training.counters.step == len(kept.losses), "reading the counters reads the last loss"
    graphs, updates, is_gpu = training.graphs, training.stepper.update_graph, device.type == "cuda"
    return TrainedSteps(
        tuple(kept.losses),
        median(seconds) if seconds else math.nan,
        torch.cuda.max_memory_allocated(device.torch) if is_gpu else 0,
        torch.cuda.max_memory_reserved(device.torch) if is_gpu else 0,
        graphs.num_graphs if graphs is not None else 0,
        updates.num_recorded if updates is not None else 0,
        " ".join(part.failure for part in (graphs, updates) if part is not None and part.failure),
        {name: weight.detach().cpu() for name, weight in exact_parameters(training.groups).items()},
        _choices(run),
    )


def _choices(run: PreparedRun) -> dict[str, str]:
    return {e.path: e.summary for e in read_events(run.setup.run_dir) if isinstance(e, SettingChosen)}


def compare_steps(name: str, ours: TrainedSteps, other: TrainedSteps, *, allowed: float) -> Iterator[Finding]:
    """Yield the row of a way to compute steps, next to steps without it, and the check that their losses are close.

    `allowed` is the largest relative difference of a loss; with 0 all bits must be equal.
    """
    words = f"{ours.seconds:.3f} s per step, {other.seconds:.3f} s without it"
    if ours.peak_bytes:
        words += (
            f"; peak {ours.peak_bytes / 2**30:.3f} and {other.peak_bytes / 2**30:.3f} GiB, reserved "
            f"{ours.reserved_bytes / 2**30:.3f} and {other.reserved_bytes / 2**30:.3f} GiB"
        )
    yield Row(name, words, numbers={"seconds": ours.seconds, "seconds_without": other.seconds})
    pairs = list(zip(ours.losses, other.losses, strict=True))
    yield at_most(f"difference of {len(pairs)} losses: {name}", max(_difference(*pair) for pair in pairs), allowed)


def compare_weights(name: str, ours: TrainedSteps, other: TrainedSteps) -> Check:
    """Return the check that all trained weights of two runs are bit-equal."""
    different = [n for n, weight in other.weights.items() if not torch.equal(weight, ours.weights[n])]
    got = f"{len(different)} of {len(other.weights)} differ"
    return Check(f"trained weights: {name}", got, "none differ", bool(other.weights) and not different)


def _difference(ours: float | None, other: float | None) -> float:
    if ours is None or other is None or not math.isfinite(ours - other):
        return math.inf
    return abs(ours - other) / max(abs(other), _TINY_LOSS)
