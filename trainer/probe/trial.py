"""A few real steps of a config, in a folder of their own: no dry run, no callbacks, no backup, no result."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch

from modules.config.schema import Config
from modules.config.usage import needs_autocast
from modules.data.datasets import Datasets
from modules.settings.edit import replace_value
from modules.settings.every import Every
from modules.system.devices import Device
from trainer.data.datasets import datasets_of
from trainer.job import Job
from trainer.run.machine import machine_of, no_spill
from trainer.run.setup import Clocks, RunSetup
from trainer.run.threads import choose_num_threads
from trainer.run.training_run import prepare
from trainer.run_folder.event_log import EventLog
from trainer.run_folder.run_dir import new_run_dir
from trainer.step.callback import StepView
from trainer.step.counters import Counters
from trainer.step.loop import run_loop
from trainer.step.precision import process_settings, timed_kernels

NEVER = Every()


@dataclass(frozen=True, slots=True)
class StepMeasurement:
    """A step: its loss (NaN if it was skipped), the images in it, and its seconds."""

    loss: float
    num_images: int
    seconds: float


@dataclass
class Trial:
    """The steps of a trial, and the most memory that the device held."""

    steps: list[StepMeasurement] = field(default_factory=list)
    peak_bytes: int = 0

    @property
    def images_per_second(self) -> float:
        """The median over all steps but the first, which also starts everything up."""
        timed = self.steps[1:] or self.steps
        return statistics.median(s.num_images / s.seconds for s in timed if s.seconds > 0)


class _Steps:
    """The trial's only callback: measures each step, whose outcome it waits for, reports it, and ends the trial."""

    def __init__(self, trial: Trial, num_steps: int, job: Job, what: str, is_over: Callable[[Trial], bool]) -> None:
        self._trial, self._num_steps, self._job, self._what, self._is_over = trial, num_steps, job, what, is_over
        self.should_stop = False

    def is_due(self, before: Counters, now: Counters) -> bool:
        """Return True: the trial may end after each step."""
        return True

    def after_step(self, view: StepView) -> None:
        """Measure a step."""
        loss = view.outcome.loss
        step = StepMeasurement(float("nan") if loss is None else loss, view.outcome.num_images, view.seconds)
        self._trial.steps.append(step)
        self.should_stop = len(self._trial.steps) >= self._num_steps or self._is_over(self._trial)
        self._job.progress(self._what, len(self._trial.steps), self._num_steps)


def run_trial(
    config: Config,
    scratch: Path,
    job: Job,
    *,
    num_steps: int,
    what: str,
    approved_code: frozenset[str] = frozenset(),
    is_over: Callable[[Trial], bool] = lambda trial: False,
) -> Trial:
    """Train `num_steps` steps from the beginning, or until `is_over(trial)`, and free the memory.

    The caches of the config are filled as a run does; everything else is in `scratch`. Raises StopRequested, the errors
    of a run, and the error of torch if memory runs out.
    """
    config = only_steps_of(config, scratch)
    datasets = datasets_of(config)
    config = _long_enough(config, datasets, num_steps)
    clocks, trial = Clocks(), Trial()
    log = EventLog(lambda _event: None, clocks.now)
    machine = machine_of(
        config.general,
        config.training.precision,
        autocast_cache=config.training.autocast_cache,
        steps_autocast=needs_autocast(config),
    )
    device = machine.train_device
    num_threads = choose_num_threads(config.general.num_threads, device_is_cpu=device.is_cpu, in_window=True)
    with ExitStack() as stack:
        settings = process_settings(
            num_threads=num_threads, precision=machine.precision.name, deterministic=config.general.deterministic
        )
        stack.enter_context(settings)
        run_dir = new_run_dir(scratch, now=clocks.now())
        log.open(run_dir)
        stack.callback(release_memory)
        stack.callback(log.close)
        stack.enter_context(no_spill(device))
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device.torch)
        setup = RunSetup(
            config, datasets, machine, job.desk, log, clocks, run_dir, num_threads, None, None, approved_code
        )
        run = prepare(setup)
        stack.callback(run.close)
        steps = _Steps(trial, num_steps, job, what, is_over)
        run.training.reporters = ()
        run.training.callbacks = (steps,)  # type: ignore[assignment]  # it has no state and no dry run
        run.training.should_stop = lambda: steps.should_stop
        with timed_kernels(
            device, num_sizes=len(datasets.training.bucket_counts), deterministic=config.general.deterministic
        ):
            run_loop(run.training)
        trial.peak_bytes = _peak_bytes(device)
        del run, setup
    return trial


def only_steps_of(config: Config, scratch: Path) -> Config:
    """Return the config of a run that only makes steps, and writes to a folder."""
    for path, value in (
        ("general.workspace_dir", str(scratch)),
        ("general.tensorboard", False),
        ("general.only_cache", False),
        ("output.destination", str(scratch / "unused.safetensors")),
        ("sampling.every", NEVER),
        ("sampling.at_start", False),
        ("sampling.at_end", False),
        ("validation.every", NEVER),
        ("backup.every", NEVER),
        ("backup.save_every", NEVER),
        ("backup.at_end", False),
    ):
        config = replace_value(config, path, value)
    return config


def _long_enough(config: Config, datasets: Datasets, num_steps: int) -> Config:
    """Return the config with enough epochs."""
    in_epoch = max(1, datasets.plans.num_steps(0))
    return replace_value(config, "training.epochs", -(-num_steps // in_epoch) + 1)


def _peak_bytes(device: Device) -> int:
    """Return the most memory that tensors had on a GPU; 0 for other devices."""
    return torch.cuda.max_memory_allocated(device.torch) if device.type == "cuda" else 0


def release_memory() -> None:
    """Free the memory of a model that nothing holds any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
