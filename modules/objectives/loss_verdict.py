"""A sentence about the losses of a run: learning, flat, overfitting since a step, or diverging, with its reason.

The loss of a step varies with its timesteps far more than training changes it, and by a factor: most are within a
factor of three of the typical one, some far above. So the logarithms of parts of the run are compared, whose spread is
about the same everywhere; a slow fall shows sooner in the line of least squares. A validation has the same timesteps
and noise each time. Its values still vary, as the weights do, so their own scatter decides what counts as a change: the
lowest of many is low by chance. Where there are enough validations they decide: a training loss that falls does not
show overfitting.
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
_MIN_VALIDATIONS = 3  # after the lowest one, for a rise that lasts
_CLEAR = 0.1  # of the first validation: at the same timesteps and noise, even two of them show it
_NOTICED = 0.01  # of a validation loss: less than this is neither a gain nor a loss that a sample shows
_SCATTER = 4.0  # times the scatter of validations, over the root of how many are compared; by simulation
_FEW, _NOTICED_OF_FEW = 5, 0.02  # validations: the scatter of so few is not known


@dataclass(frozen=True, slots=True)
class Verdict:
    """The finding, and the sentence for it; `since_step` is the step from which the losses rise, else None."""

    finding: Finding
    sentence: str
    since_step: int | None = None


def read_losses(points_N2: NDArray[np.float64], validations: Sequence[tuple[int, float]] = ()) -> Verdict:
    """Return the verdict on the losses of a run: of its steps (N, 2: step, loss), and of its validations (step, loss).

    Of a long run an even selection of its steps is enough. All values must be finite. Only for losses that compare a
    prediction to a target: the loss of a policy gradient or of a preference does not.
    """
    of_steps = _read_steps(points_N2)
    if of_steps.finding == "diverging":
        return of_steps
    return _read_validations(validations, is_fitting=of_steps.finding == "learning") or of_steps


def _read_steps(points_N2: NDArray[np.float64]) -> Verdict:
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

    for low in (start, lowest):
        if errors_above(low, last) > _ERRORS and level(last) > (1 + _MUCH) * level(low):
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


def _read_validations(validations: Sequence[tuple[int, float]], *, is_fitting: bool) -> Verdict | None:
    """Return the verdict on validations; None if there are too few, unless they fell clearly.

    `is_fitting`: the training loss falls, so a validation loss that rises far means overfitting, not divergence.
    """
    number = len(validations)
    if number < _MIN_VALIDATIONS:
        if not validations or validations[-1][1] >= (1 - _CLEAR) * validations[0][1]:
            return None
        fell = f"{validations[0][1]:.4f} to {validations[-1][1]:.4f}"
        return Verdict("learning", f"Learning: the validation loss fell, {fell}.")
    values = np.array([value for _, value in validations])
    lowest = int(values.argmin())
    (_, first), (step, least), (_, last) = validations[0], validations[lowest], validations[-1]
    if not is_fitting and values[-2:].min() > (1 + _MUCH) * first:
        return Verdict(
            "diverging",
            f"Diverging: the validation loss rose from {least:.4f} at step {step:,} to {last:.4f}, far above the "
            f"first one, {first:.4f}. A lower learning rate may help.",
            step,
        )
    width = max(_MIN_VALIDATIONS, math.isqrt(number))
    noticed = max(_NOTICED, _SCATTER * _scatter(values) / math.sqrt(width)) if number > _FEW else _NOTICED_OF_FEW
    around, now = (float(np.median(part)) for part in (values[max(0, lowest - width // 2) :][:width], values[-width:]))
    # The lowest of values that only scatter is below the others, too: something must have been learned, or unlearned.
    has_changed = is_fitting or around < (1 - noticed) * first or now > (1 + 2 * noticed) * first
    if has_changed and lowest < number - width and now > (1 + noticed) * around and last > (1 + noticed) * least:
        return Verdict(
            "overfitting",
            f"Overfitting since step {step:,}: the validation loss was lowest there, {least:.4f}, and the last "
            f"{width} are higher, now {last:.4f}. The model of that step may be the better one.",
            step,
        )
    earlier = values[min(1, number - width - 1) : number - width][-width:] if number > width else values[:1]
    if now < (1 - noticed) * float(np.median(earlier)):
        if last > (1 + _NOTICED) * least:
            where = f"{first:.4f} to {least:.4f} at step {step:,}; the last one is higher, {last:.4f}"
            return Verdict("learning", f"Learning so far: the validation loss fell, {where}.")
        return Verdict("learning", f"Learning: the validation loss is still falling, {first:.4f} to {least:.4f}.")
    return Verdict("flat", _flat(first, least, step, width, noticed))


def _flat(first: float, least: float, step: int, width: int, noticed: float) -> str:
    if least < (1 - noticed) * first:
        return (
            f"Flat: the validation loss fell from {first:.4f} to {least:.4f} at step {step:,}, and the last {width} "
            "are neither clearly lower nor clearly higher."
        )
    return (
        f"Flat: the last {width} validations are neither clearly lower nor clearly higher than the first, {first:.4f}."
    )


def _scatter(values: NDArray[np.float64]) -> float:
    """Return the standard deviation of validations about their own curve, relative to them."""
    logs = np.log(np.maximum(values[len(values) // 3 :], 1e-30))  # before, the curve itself bends
    bends = logs[1:-1] - (logs[:-2] + logs[2:]) / 2  # of independent values they have 3/2 of the variance
    return float(np.median(np.abs(bends))) / 0.6745 / math.sqrt(1.5) * (1 + 1 / len(bends))
