"""The probe: measures micro-batches and sweeps learning rates, and writes plots and points into a folder."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from modules.config.schema import Config
from modules.config.usage import method_of
from modules.optim.registry import optimizer_spec
from modules.optim.schedule_registry import formula_schedule
from modules.settings.edit import get_path, replace_value
from modules.system.atomic import write_text
from modules.system.errors import DarkroomError
from modules.system.hardware import free_memory
from modules.system.problem import count, format_size
from trainer.data.datasets import datasets_of
from trainer.job import Job
from trainer.job_events import JobFinished
from trainer.preflight import check
from trainer.preflight.estimates import sizes_of
from trainer.preflight.run_budget import TIGHT, memory_estimate
from trainer.probe.curve import RatePoint, RateResult, evaluate_sweep, has_diverged, sweep_expression, swept_rate
from trainer.probe.plot import batch_plot, rate_plot, write_plot
from trainer.probe.trial import Trial, run_trial
from trainer.run.machine import machine_of
from trainer.step.failures import is_out_of_memory

_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_STEPS_PER_SIZE = 4
_NO_FASTER = 1.03  # images a second against the best so far: below it a larger batch does not pay
_MAX_IN_A_ROW = 2  # sizes in a row that do not pay, on a CPU, whose memory sets no sharp limit


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """A measured micro-batch: its size, images per second, and the most memory of the device (0 on a CPU)."""

    batch_size: int
    images_per_second: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The sizes that ran, and why there is no larger one."""

    points: tuple[BatchPoint, ...]
    reason: str

    @property
    def largest(self) -> BatchPoint:
        """The largest that ran."""
        return self.points[-1]

    @property
    def fastest(self) -> BatchPoint:
        """The smallest of those that are about as fast as the fastest."""
        best = max(p.images_per_second for p in self.points)
        return next(p for p in self.points if p.images_per_second * _NO_FASTER >= best)

    def __str__(self) -> str:
        fastest, largest = self.fastest, self.largest
        memory = f", with {format_size(largest.peak_bytes)} of the card's memory" if largest.peak_bytes else ""
        return (
            f"The largest batch that ran is {largest.batch_size}{memory}: {self.reason} Throughput "
            f"hardly rises beyond a batch of {fastest.batch_size} ({fastest.images_per_second:.3g} images a second)."
        )


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """The measurements to make of a config, and the folder for the results. The rates are the ends of the sweep."""

    config: Config
    out: Path
    wants_batch: bool = True
    wants_rate: bool = True
    num_steps: int = 60
    lowest_rate: float = 0.0
    highest_rate: float = 0.0
    max_batch: int = _SIZES[-1]
    approved_code: frozenset[str] = frozenset()


def probe(request: ProbeRequest, job: Job) -> JobFinished:
    """Measure what is requested, and write `points.json` and the plots. Raises DarkroomError, StopRequested.

    The trials are in a folder next to the results that is removed at the end. Nothing else of the config is touched,
    except that its caches are filled.
    """
    _check(request, job)
    scratch = request.out / "trials"
    notes, paths, data = [], [], {}
    try:
        if request.wants_batch:
            sizes = measure_batches(request, scratch, job)
            data["batch"] = {"points": [asdict(p) for p in sizes.points], "largest": sizes.largest.batch_size,
                             "fastest": sizes.fastest.batch_size, "words": str(sizes)}  # fmt: skip
            notes.append(str(sizes))
            paths.append(_plot_batches(request.out / "batch_size.png", sizes))
        if request.wants_rate:
            rates = sweep_rates(request, scratch, job)
            data["learning_rate"] = {"points": [asdict(p) for p in rates.points], "smoothed": list(rates.smoothed),
                                     "suggested": rates.suggested, "diverges_at": rates.diverges_at,
                                     "words": str(rates)}  # fmt: skip
            notes.append(str(rates))
            paths.append(_plot_rates(request.out / "learning_rate.png", rates))
        paths.append(request.out / "points.json")
        write_text(paths[-1], json.dumps(data, indent=1) + "\n")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return JobFinished("Measured.", tuple(map(str, paths)), tuple(notes))


def measure_batches(request: ProbeRequest, scratch: Path, job: Job) -> BatchResult:
    """Run a few steps of growing micro-batches until one does not fit, cannot be filled, or is not faster."""
    config = request.config
    points: list[BatchPoint] = []
    reason, worse = f"no larger one was tried than {request.max_batch}.", 0
    datasets = datasets_of(config)
    most_images = max(datasets.training.bucket_counts.values(), default=0)
    is_cpu = machine_of(config.general, config.training.precision).train_device.is_cpu
    for size in (s for s in _SIZES if s <= request.max_batch):
        if size > most_images and points:
            reason = f"no size of image has more than {count(most_images, 'image')} in an epoch."
            break
        changed = replace_value(replace_value(config, "training.batch_size", size), "training.accumulation_steps", 1)
        if is_cpu and points and not _fits_memory(changed):
            reason = f"by the estimate, {size} would not fit the computer's free memory."
            break
        what = f"Batch of {size}"
        trial = _try(lambda c=changed, w=what: _trial(request, c, scratch, job, _STEPS_PER_SIZE, w))  # type: ignore[misc]
        if trial is None:
            reason = f"a batch of {size} runs out of memory."
            break
        best = max((p.images_per_second for p in points), default=0.0)
        points.append(BatchPoint(size, trial.images_per_second, trial.peak_bytes))
        worse = worse + 1 if points[-1].images_per_second < best * _NO_FASTER else 0
        if is_cpu and worse == _MAX_IN_A_ROW:
            reason = "larger ones are not faster on this CPU."
            break
    if not points:
        raise DarkroomError(
            "Not even a batch of 1 fits the memory.", advice="Fit the run to the card first: train --fit auto."
        )
    return BatchResult(tuple(points), reason)


def sweep_rates(request: ProbeRequest, scratch: Path, job: Job) -> RateResult:
    """Train with a rising learning rate, and compute the same steps without training, to compare them."""
    lowest, highest = _ends(request)
    config, num_steps = request.config, request.num_steps
    untrained = _with_schedule(config, "0", highest)
    before = _trial(request, untrained, scratch, job, num_steps, "Steps without training")
    losses = [step.loss for step in before.steps]

    def is_over(trial: Trial) -> bool:
        return has_diverged(trial.steps[-1].loss, losses[min(len(trial.steps), len(losses)) - 1])

    swept = _with_schedule(config, sweep_expression(num_steps, lowest, highest), highest)
    after = _trial(request, swept, scratch, job, num_steps, "Learning rates", is_over)
    pairs = zip(after.steps, losses, strict=False)
    return evaluate_sweep(
        [RatePoint(swept_rate(i, num_steps, lowest, highest), step.loss, loss) for i, (step, loss) in enumerate(pairs)]
    )


def _trial(
    request: ProbeRequest,
    config: Config,
    scratch: Path,
    job: Job,
    num_steps: int,
    what: str,
    is_over: Callable[[Trial], bool] = lambda trial: False,
) -> Trial:
    return run_trial(
        config,
        scratch,
        job,
        num_steps=num_steps,
        what=what,
        approved_code=request.approved_code,
        is_over=is_over,
    )


def _try(trial: Callable[[], Trial]) -> Trial | None:
    """Return a trial, or None if it ran out of memory."""
    try:
        return trial()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    return None


def _check(request: ProbeRequest, job: Job) -> None:
    """Raise DarkroomError for a config that could not run, or that has no rate to look for."""
    report = check(request.config, approved_code=request.approved_code or None, progress=job.progress)
    if report.errors:
        advice = " ".join(dict.fromkeys(e.advice for e in report.errors if e.advice))
        raise DarkroomError(" ".join(e.message for e in report.errors), advice=advice)
    if method_of(request.config).needs_reward_models or method_of(request.config).rollout is not None:
        raise DarkroomError(
            "The probe measures methods that train on images; this one samples its own.",
            advice="Choose Denoising or a method of pairs, or measure with short runs.",
        )
    spec = optimizer_spec(request.config.training.optimizer)
    if request.wants_rate and spec.finds_its_rate:
        raise DarkroomError(
            f"{spec.label} finds its learning rate itself, so there is none to look for.",
            advice="Leave the learning rate at 1, or measure the batch alone (--what batch).",
        )


def _ends(request: ProbeRequest) -> tuple[float, float]:
    """Return the ends of the sweep: the requested ones, or two powers of ten below and above the usual rates."""
    training = request.config.training
    usual = optimizer_spec(training.optimizer).rates
    span = usual.full if training.trains in ("full", "vae") else usual.adapter
    lowest = request.lowest_rate or span.lowest * 10
    highest = request.highest_rate or span.highest
    if not 0 < lowest < highest:
        raise DarkroomError(
            f"The learning rates from {lowest:g} to {highest:g} are not a range.",
            advice="Give a lower --from or higher --to.",
        )
    return lowest, highest


def _with_schedule(config: Config, expression: str, highest: float) -> Config:
    """Return the config with a schedule; rates of single parts keep their ratio to the general one."""
    factor = highest / config.training.learning_rate if config.training.learning_rate else 1.0
    for part in config.family_parts:
        path = f"parts.{part.name}.learning_rate"
        if (rate := get_path(config, path)) is not None:
            config = replace_value(config, path, rate * factor)
    if config.embeddings.learning_rate is not None:
        config = replace_value(config, "embeddings.learning_rate", config.embeddings.learning_rate * factor)
    config = replace_value(config, "training.learning_rate", highest)
    return replace_value(config, "training.schedule", formula_schedule().settings(expression=expression))


def _fits_memory(config: Config) -> bool:
    """Return whether the estimate of a run on the CPU fits the memory that is free; True without an estimate."""
    datasets = datasets_of(config)
    estimated = memory_estimate(config, sizes_of(datasets.training, datasets.validation))
    return estimated is None or estimated.peak.total_bytes <= TIGHT * free_memory()


def _plot_batches(file: Path, result: BatchResult) -> Path:
    sizes, speeds = [p.batch_size for p in result.points], [p.images_per_second for p in result.points]
    write_plot(file, batch_plot(sizes, speeds, result.fastest.batch_size))
    return file


def _plot_rates(file: Path, result: RateResult) -> Path:
    rates, changes = [p.rate for p in result.points], [p.change for p in result.points]
    if not rates or not any(map(math.isfinite, changes)):
        raise DarkroomError("No step of the sweep has a finite loss.", advice="Start at a lower rate (--from).")
    write_plot(file, rate_plot(rates, changes, result.smoothed, result.suggested))
    return file
