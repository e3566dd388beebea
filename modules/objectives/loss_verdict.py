"""A sentence about the losses of a run: learning, flat, overfitting since a step, or diverging, with its reason.

The loss of a step varies with its timesteps far more than training changes it, and by a factor: most are within a
factor of three of the typical one, some far above. So the logarithms of parts of the run are compared, whose spread is
about the same everywhere; a slow fall shows sooner in the line of least squares. A validation has the same timesteps
and noise each time. Its values still wander, as the weights do, and the lowest of many is low by chance. So a rise has
to be larger than what a random walk with the steps of this run's validations reaches (`_bend`). Where there are
enough validations they decide: a training loss that falls does not show overfitting. A learning rate that has risen, as
at a restart, raises both losses for a while: losses at a lower one are not compared, or have to be doubled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Finding = Literal["unknown", "learning", "flat", "overfitting", "diverging"]

_NUM_PARTS, _MIN_STEPS = 8, 48  # parts of a run, each of at least six steps: a mean of fewer is little but noise
_START = 8  # steps in which the model is nearly untrained: a run may break before its first part ends
_ERRORS, _LIKELY_ERRORS = 4.0, 2.5  # standard errors; a smaller difference is taken for chance, or reported as unsure
_MUCH = 0.25  # of the lowest level: more than the share of hard images or a new part of the schedule changes
_MIN_SHARE = 1e-3  # of the median loss: a loss of 0, as of an image without a masked region, has no logarithm
_MUCH_AT_HIGHER_RATE = 1.0  # the same, where the learning rate was lower
_MIN_VALIDATIONS = 3  # after the lowest one, for a rise that lasts
_CLEAR = 0.1  # of the first validation: at the same timesteps and noise, even two of them show it
_NOTICED, _RISE = 0.015, 0.04  # of a validation loss: less is no gain, or no rise, that a sample shows
_WANDERS = 4.0  # times `_bend`, so two to three deviations of a walk; by simulation, as the lowest point is chosen
_MOST_BEND = 0.0105  # of few validations, a bend of the curve itself looks like wandering
_NEAR_LOWEST = 0.15  # above the lowest validation: before, the curve itself bends
_SAME_RATE = 0.8  # of the learning rate, or more
_NEITHER = "neither clearly lower nor clearly higher"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The finding, and the sentence for it; `since_step` is the step from which the losses rise, else None."""

    finding: Finding
    sentence: str
    since_step: int | None = None


def read_losses(
    points_N2: NDArray[np.float64],
    validations: Sequence[tuple[int, float]] = (),
    rates_N2: NDArray[np.float64] | None = None,
) -> Verdict:
    """Return the verdict on the losses of a run: of its steps (N, 2: step, loss), and of its validations (step, loss).

    Of a long run an even selection of its steps is enough. `rates_N2` are its learning rates (step, rate), if they are
    known. All values must be finite. Only for losses that compare a prediction to a target: the loss of a policy
    gradient or of a preference does not.
    """

    def rates_at(steps_N: NDArray[np.float64]) -> NDArray[np.float64]:
        if rates_N2 is None or not len(rates_N2):
            return np.ones(len(steps_N))
        return np.interp(steps_N, rates_N2[:, 0], rates_N2[:, 1])

    of_steps = _read_steps(points_N2, rates_at(points_N2[:, 0]))
    if of_steps.finding == "diverging" or not validations:
        return of_steps
    rates_V = rates_at(np.array([step for step, _ in validations], dtype=np.float64))
    return _read_validations(validations, rates_V, is_fitting=of_steps.finding == "learning") or of_steps


def _read_steps(points_N2: NDArray[np.float64], rates_N: NDArray[np.float64]) -> Verdict:
    number = len(points_N2)
    if number < _MIN_STEPS:
        return Verdict("unknown", f"Too early to say: {number:,} of {_MIN_STEPS} steps.")
    num_steps = int(points_N2[-1, 0] - points_N2[0, 0]) + 1
    losses_N = points_N2[:, 1]
    logs_N = np.log(np.maximum(losses_N, max(_MIN_SHARE * float(np.median(losses_N)), 1e-30)))
    parts = np.array_split(np.arange(number), _NUM_PARTS)
    spread = math.sqrt(float(np.mean([logs_N[part].var(ddof=1) for part in parts])))
    last, start = parts[-1], np.arange(_START)
    lowest = min(parts, key=lambda part: logs_N[part].mean())

    def errors_above(low: NDArray[np.intp], high: NDArray[np.intp]) -> float:
        """Return by how many standard errors the level of some steps is above the level of others."""
        error = spread * math.sqrt(1 / len(low) + 1 / len(high))
        rise = float(logs_N[high].mean() - logs_N[low].mean())
        return rise / error if error else math.copysign(math.inf, rise) if rise else 0.0

    def level(steps: NDArray[np.intp]) -> float:
        return math.exp(logs_N[steps].mean())

    was_lower = rates_N[lowest].mean() < _SAME_RATE * rates_N[last].mean()
    for low, much in ((start, _MUCH), (lowest, _MUCH_AT_HIGHER_RATE if was_lower else _MUCH)):
        if errors_above(low, last) > _ERRORS and level(last) > (1 + much) * level(low):
            step = int(points_N2[low[-1], 0])
            return Verdict(
                "diverging",
                f"Diverging: the typical training loss rose from {level(low):.4f} to {level(last):.4f} since step "
                f"{step:,}. A lower learning rate may help.",
                step,
            )
    first = parts[0]
    fell = f"the typical training loss fell from {level(first):.4f} to {level(last):.4f}"
    fall = errors_above(last, first)
    if fall > _ERRORS:
        return Verdict("learning", f"Learning: {fell}. Only a validation shows whether it overfits.")
    if fall > _LIKELY_ERRORS or (fall > 0 and errors_above(lowest, last) <= _LIKELY_ERRORS and _falls(logs_N)):
        return Verdict(
            "unknown",
            f"Probably learning: over {num_steps:,} steps {fell}, which may be chance. Look at the samples, or "
            "validate, to be sure.",
        )
    return Verdict(
        "flat",
        f"Flat: over {num_steps:,} steps the typical training loss changed by less than its own noise, "
        f"{level(first):.4f} to {level(last):.4f}. Look at the samples, or validate, to see whether it learns.",
    )


def _falls(logs_N: NDArray[np.float64]) -> bool:
    """Return whether the line of least squares through losses falls by more than chance explains."""
    places_N = np.linspace(-1, 1, len(logs_N))
    squares = float(places_N @ places_N)
    slope = float(places_N @ logs_N) / squares
    rests_N = logs_N - logs_N.mean() - slope * places_N
    return -slope > _LIKELY_ERRORS * float(np.sqrt(rests_N @ rests_N / (len(logs_N) - 2) / squares))


def _read_validations(
    validations: Sequence[tuple[int, float]], rates_V: NDArray[np.float64], *, is_fitting: bool
) -> Verdict | None:
    """Return the verdict on validations; None if there are too few, unless they fell clearly.

    `is_fitting`: the training loss falls, so a validation loss that rises far means overfitting, not divergence.
    """
    number = len(validations)
    (_, first), (_, last) = validations[0], validations[-1]
    if number < _MIN_VALIDATIONS:
        if last >= (1 - _CLEAR) * first:
            return None
        return Verdict("learning", f"Learning: the validation loss fell, {first:.4f} to {last:.4f}.")
    width = max(_MIN_VALIDATIONS, math.isqrt(number))
    has_same_rate = rates_V >= _SAME_RATE * rates_V[-1]
    step, least = min(validations, key=lambda validation: validation[1])
    if not is_fitting and min(loss for _, loss in validations[-2:]) > (1 + _MUCH) * first:
        return Verdict(
            "diverging",
            f"Diverging: the validation loss rose from {least:.4f} at step {step:,} to {last:.4f}, far above the "
            f"first one, {first:.4f}. A lower learning rate may help.",
            step,
        )
    verdict = None
    if has_same_rate[-width:].all():
        compared = [validation for validation, is_same in zip(validations, has_same_rate, strict=True) if is_same]
        verdict = _compare_validations(compared, width, first, is_fitting=is_fitting)
        if verdict.finding == "overfitting" or (step, least) in compared:
            return verdict
    if last > (1 + _RISE) * least:
        at_rate = f"{least:.4f} at step {step:,}; now it is {last:.4f}, at a learning rate that has risen since"
        return Verdict("unknown", f"Too early to say: the validation loss was {at_rate}.")
    if last < (1 - _NOTICED) * first:
        return Verdict("learning", f"Learning: the validation loss fell, {first:.4f} to {last:.4f}.")
    if verdict is not None:
        return verdict
    return Verdict(
        "unknown",
        f"Too early to say: the learning rate has risen, and the validation loss has not fallen yet, {first:.4f} to "
        f"{last:.4f}.",
    )


def _compare_validations(
    validations: Sequence[tuple[int, float]], width: int, first: float, *, is_fitting: bool
) -> Verdict:
    """Return the verdict on three validations and more at rates like the present one; `width` is how many are recent.

    `first` is the validation loss of the untrained model, at whatever rate.
    """
    number = len(validations)
    logs_V = np.log(np.maximum([loss for _, loss in validations], 1e-30))
    lowest = int(logs_V.argmin())
    (step, least), (_, last) = validations[lowest], validations[-1]
    settled = int(np.argmax(logs_V < logs_V[lowest] + _NEAR_LOWEST))
    settled_V = logs_V[settled:]
    deviation = min(_bend(settled_V), _MOST_BEND)

    def wandering(num: int) -> float:
        """Return how far validations wander within so many of them, as the difference of logarithms."""
        return _WANDERS * deviation * math.sqrt(num)

    rise, gain = max(_RISE, wandering(len(settled_V))), max(_NOTICED, wandering(len(settled_V)))
    start = math.log(max(first, 1e-30))
    around = float(np.median(logs_V[max(settled, lowest - width // 2) :][:width]))
    now = float(np.median(logs_V[-width:]))
    # The lowest of values that only scatter is below the others, too: something must have been learned, or unlearned.
    has_changed = is_fitting or around < start - gain or now > start + rise
    if has_changed and lowest < number - width and min(now - around, logs_V[-1] - logs_V[lowest]) > rise:
        return Verdict(
            "overfitting",
            f"Overfitting since step {step:,}: the validation loss was lowest there, {least:.4f}, and the last "
            f"{width} are higher, now {last:.4f}. The model of that step may be the better one.",
            step,
        )
    earlier_V = logs_V[min(1, number - width - 1) : number - width][-width:] if number > width else logs_V[:1]
    fell = float(np.median(earlier_V)) - now
    if start - now > gain and fell > max(_NOTICED, wandering(width)):
        if logs_V[-1] > logs_V[lowest] + _NOTICED:
            where = f"{first:.4f} to {least:.4f} at step {step:,}; the last one is higher, {last:.4f}"
            return Verdict("learning", f"Learning so far: the validation loss fell, {where}.")
        return Verdict("learning", f"Learning: the validation loss is still falling, {first:.4f} to {least:.4f}.")
    if start - logs_V[lowest] > gain:
        is_higher = now - around > _RISE
        how = f"higher, now {last:.4f}, but by no more than they may wander" if is_higher else _NEITHER
        where = f"{first:.4f} to {least:.4f} at step {step:,}, and the last {width} are {how}"
        return Verdict("flat", f"Flat: the validation loss fell from {where}.")
    return Verdict(
        "flat",
        f"Flat: the last {width} validations are {_NEITHER} than the first, {first:.4f}.",
    )


def _bend(logs_V: NDArray[np.float64]) -> float:
    """Return how much validations scatter about their curve from one to the next, as a standard deviation.

    Of a random walk it is 0.5 to 0.7 times the deviation of its steps. Blocks of values are compared, so that values
    that are independent of each other count as a walk of small steps. Median, since a curve that turns bends at one
    place.
    """
    width = max(1, round(math.sqrt(len(logs_V)) / 2))
    while width > 1 and len(logs_V) < 5 * width - 1:  # at least twice as many bends as a block is wide
        width -= 1
    sums_V = np.cumsum(np.insert(logs_V, 0, 0.0))
    means_V = (sums_V[width:] - sums_V[:-width]) / width
    bends_V = means_V[width:-width] - (means_V[: -2 * width] + means_V[2 * width :]) / 2
    return float(np.median(np.abs(bends_V))) / 0.6745 / math.sqrt(width) if len(bends_V) else math.inf
