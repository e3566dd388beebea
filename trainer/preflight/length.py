"""The length of a run in steps, and settings that do not fit: batches, EMA, warm-up, validation, parts that stop."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator

from modules.config.rules.images import too_few_validations
from modules.config.schema import Config
from modules.config.usage import trained_parts
from modules.data.dataset import Dataset, concept_repeats_of
from modules.data.plans import EpochPlans
from modules.optim.schedule_registry import SCHEDULES, factors_over_run, learning_rate_factor
from modules.settings.every import Every, Moment
from modules.system.errors import DarkroomError
from modules.system.problem import Problem, agree, count, list_first

_MAX_NAMED = 20


def problems_of_length(config: Config, training: Dataset, plans: EpochPlans) -> Iterator[Problem]:
    """Yield the problems that depend on the number of images and steps; nothing without images."""
    if not training.examples:
        return
    epochs = config.training.epochs
    total_steps = plans.total_steps(epochs)
    keeps_all = config.data.partial_batches == "keep"
    fills_no_batch = "" if keeps_all else " Or keep partial batches."
    if total_steps == 0 or plans.has_empty_epoch(epochs):
        message = (
            "With these repeats no image is used at all."
            if total_steps == 0 and keeps_all
            else "There are so few images and repeats that some epochs would have no images."
            if keeps_all
            else "There are so few images and repeats that some epochs would have no full batch."
        )
        yield Problem("concepts", message, advice=f"Raise the repeats.{fills_no_batch}")
    if total_steps == 0:
        return
    yield from _batches(config, training)
    yield from _ema(config, total_steps)
    yield from _warm_up(config, total_steps)
    yield from _schedule(config, total_steps)
    yield from _stops(config, plans, total_steps)


def _batches(config: Config, training: Dataset) -> Iterator[Problem]:
    """Yield problems of buckets with fewer images than a batch, and of too many accumulation steps."""
    batch_size, accumulation = config.training.batch_size, config.training.accumulation_steps
    sample_indices = _samples_by_size(training)
    small = {size for size, count in sample_indices.items() if count < batch_size}
    if small and config.data.partial_batches == "drop":
        yield _never_trained(training, small, batch_size)
    elif small:
        whole = len(small) == len(sample_indices)
        have = "has" if whole or len(small) == 1 else "have"
        fate = (
            "these batches are smaller."
            if config.data.partial_batches == "keep"
            else "they are trained with images of later epochs."
        )
        yield Problem(
            "training.batch_size",
            f"{'Every size' if whole else f'{len(small)} of {len(sample_indices)} sizes'} of image {have} fewer images "
            f"in an epoch than the batch of {batch_size}. No image is dropped: {fate}",
            "warning" if whole else "info",
            # One size at each resolution: it is fixed, or all images have one shape.
            "Lower the batch size, add images, or raise the repeats."
            if len(sample_indices) <= training.num_resolutions
            else "Lower the batch size, or raise the bucket step, so that there are fewer sizes.",
        )
    num_batches = max(1, sum(math.ceil(count / batch_size) for count in sample_indices.values()))
    if accumulation > num_batches:
        yield Problem(
            "training.accumulation_steps",
            f"The accumulation steps are {accumulation}, but an epoch has only "
            f"{count(num_batches, 'batch', 'batches')}. A step never crosses into the next "
            "epoch, so each step accumulates the batches of one epoch.",
            "warning",
            f"Lower it to {num_batches} or less, or raise the repeats.",
        )


def _never_trained(training: Dataset, small: Collection[str], batch_size: int) -> Problem:
    """Return a warning that lists the images of buckets that never fill a batch."""
    paths = [
        e.image.path
        for e, sizes in zip(training.examples, training.buckets, strict=True)
        if all(str(size) in small for size in sizes)
    ]
    named = "Some images are not trained at every resolution"
    if paths:
        names = list_first([p.name for p in paths], _MAX_NAMED)
        named = f"{count(len(paths), 'image')} {agree(len(paths), 'is')} never trained: {names}"
    return Problem(
        "data.partial_batches",
        f"Partial batches are dropped, and {count(len(small), 'size')} of image {agree(len(small), 'has')} fewer "
        f"images in an epoch than the batch of {batch_size}. {named}.",
        "warning",
        "Keep or merge partial batches, or lower the batch size.",
    )


def _samples_by_size(training: Dataset) -> dict[str, int]:
    """Return the mean number of images of each size per epoch, rounded up."""
    counts: Counter[str] = Counter()
    shares: dict[str, float] = {}
    repeats = [float(r.exact_repeats) for r in concept_repeats_of(training.concepts, run_seed=0)]
    for example, sizes in zip(training.examples, training.buckets, strict=True):
        for size in sizes:
            key = str(size)
            shares[key] = shares.get(key, 0.0) + repeats[example.concept] / training.num_resolutions
    counts.update({key: math.ceil(share - 1e-9) for key, share in shares.items() if share > 0})
    return dict(counts)


def _ema(config: Config, total_steps: int) -> Iterator[Problem]:
    ema = config.training.ema
    if ema.mode != "off" and ema.update_every_steps > total_steps:
        yield Problem(
            "training.ema.update_every_steps",
            f"EMA is updated every {ema.update_every_steps:,} steps, but the run has only {total_steps:,}. The saved "
            "weights would be those at the start of the run.",
            advice="Lower it, or switch off EMA.",
        )


def _warm_up(config: Config, total_steps: int) -> Iterator[Problem]:
    warmup_steps = config.training.schedule.warmup_steps
    if warmup_steps >= total_steps:
        yield Problem(
            "training.schedule",
            f"The warm-up of {count(warmup_steps, 'step')} is not shorter than the run of "
            f"{count(total_steps, 'step')}. The learning rate never reaches its full value.",
            "warning",
            "Shorten the warm-up.",
        )


def _schedule(config: Config, total_steps: int) -> Iterator[Problem]:
    """Yield a problem where the schedule has no learning rate at one of some steps of the run, or is always 0."""
    training = config.training
    if any(SCHEDULES[training.schedule.name].problems(training.schedule)):
        return  # the rules report them
    try:
        points = factors_over_run(
            lambda step: learning_rate_factor(
                training.schedule,
                step=step,
                total_steps=total_steps,
                epochs=training.epochs,
                learning_rate=training.learning_rate,
            ),
            total_steps,
        )
    except DarkroomError as error:
        yield Problem("training.schedule", error.message, advice=error.advice)
        return
    if not any(factor for _, factor in points):
        yield Problem(
            "training.schedule",
            "The schedule makes the learning rate 0 for the whole run: nothing is trained.",
            advice="Correct its settings, or choose another schedule.",
        )


def _stops(config: Config, plans: EpochPlans, total_steps: int) -> Iterator[Problem]:
    """Yield problems of spans in steps; those in epochs are checked without images, spans of time only by the clock."""
    spans = {p.name: config.part(p.name).stop_after for p in trained_parts(config)}
    ends = {name: _step_of(span, plans, total_steps) for name, span in spans.items()}
    for name, span in spans.items():
        if span.unit == "step" and span.n >= total_steps:
            yield Problem(
                f"parts.{name}.stop_after",
                f"Training of this part would stop after {count(round(span.n), 'step')}, but the run has only "
                f"{total_steps:,}.",
                "info",
            )
    if ends and any(s.unit == "step" for s in spans.values()) and all(0 < end < total_steps for end in ends.values()):
        last = max(ends, key=lambda name: ends[name])
        yield Problem(
            f"parts.{last}.stop_after",
            f"Training of every part stops after {count(round(ends[last]), 'step')}: the run of "
            f"{count(total_steps, 'step')} ends there.",
            "warning",
            "Train one part to the end, or shorten the run.",
        )


def _step_of(span: Every, plans: EpochPlans, total_steps: int) -> float:
    """Return the step after which training of a part stops; the last step if it does not stop or depends on time."""
    if span.is_never or span.unit not in ("step", "epoch"):
        return total_steps
    return span.n if span.unit == "step" else plans.total_steps(math.ceil(min(span.n, 1e6)))


def problems_of_validation(config: Config, *, total_steps: int) -> Iterator[Problem]:
    """Yield problems of settings that depend on validation, if the run has too few validations for them."""
    every = config.validation.every
    if total_steps and every.unit == "step" and not every.is_never:
        yield from too_few_validations(config, every.times(Moment(step=total_steps, epoch=0, seconds=0.0)))
