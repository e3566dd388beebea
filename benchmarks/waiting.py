"""The share of a step in which the training waits for its next batch, with everything in the caches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

from benchmarks.loop_speed import run_setup
from benchmarks.measure import wait_for
from modules.config.schema import Config
from modules.data.batch import Batch
from trainer.data.loader import Loader
from trainer.run.training_run import prepare
from trainer.step.loop import train_epoch
from trainer.step.precision import process_settings


@dataclass(frozen=True, slots=True)
class Waiting:
    """The seconds of some steps, and how many of them were spent waiting for batches."""

    num_steps: int
    total_seconds: float
    waited_seconds: float

    @property
    def share(self) -> float:
        """The share of the steps that was spent waiting, 0 to 1."""
        return self.waited_seconds / self.total_seconds


@dataclass(eq=False)
class TimedLoader:
    """A loader that adds up the time until each batch is delivered."""

    loader: Loader
    waited_seconds: float = field(default=0.0)

    @property
    def plans(self) -> object:
        """The plans of the loader."""
        return self.loader.plans

    def batches(self, epoch: int, *, first_epoch_step: int, step: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, as the loader does."""
        source = self.loader.batches(epoch, first_epoch_step=first_epoch_step, step=step)
        while True:
            start = time.perf_counter()
            batch = next(source, None)
            self.waited_seconds += time.perf_counter() - start
            if batch is None:
                return
            yield batch


def waiting_share(config: Config, *, rounds: int, num_threads: int) -> Waiting:
    """Train a warm-up epoch and then `rounds` epochs of a config; return how long the steps waited for batches.

    Everything between the request for a batch and its delivery counts, the move to the device included.
    """
    with process_settings(num_threads=num_threads, precision=config.training.precision, deterministic=False):
        run = prepare(run_setup(config, num_threads))
        try:
            device, training = run.setup.machine.train_device, run.training
            train_epoch(training)
            loader = TimedLoader(training.loader)
            training.loader = cast(Loader, loader)
            first = training.counters.step
            wait_for(device)
            start = time.perf_counter()
            for _ in range(rounds):
                train_epoch(training)
            wait_for(device)
            return Waiting(training.counters.step - first, time.perf_counter() - start, loader.waited_seconds)
        finally:
            run.close()
